// The GPU resources of one owner, such as an engine: the driver, NCCL, and the GPUs used so far with their buffers and kernels.
// Thread: any; one lock of Devices, and one of each Device for its kernels. A lock is held while its owner opens something for
// the first time; close() holds the lock of Devices. Owns: all these resources. Blocks: the first use of each resource;
// close(). Throws: what each part throws. After a failure the next call tries again, because the cause may be gone.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/buffers.h"
#include "device/fusion_kernels.h"
#include "device/gpu.h"
#include "device/nccl.h"

namespace hvdlite::device {

struct DeviceSettings {
  Candidates cuda;
  Candidates nccl;
  KernelSource kernels;
  std::size_t keep_bytes = 0;  // of returned buffers, for each GPU and each kind of memory
};

// One GPU with its buffers and kernels.
class Device {
 public:
  Device(GpuPtr opened, const DeviceSettings& settings);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const GpuPtr gpu;
  const std::shared_ptr<BufferPool> memory;  // the GPU's
  const std::shared_ptr<BufferPool> pinned;  // the host's
  // The first call loads the kernels. So programs that do not use them need no compiler.
  FusionKernels& kernels();

 private:
  const KernelSource source_;
  std::mutex mutex_;
  std::unique_ptr<FusionKernels> kernels_;
};

class Devices {
 public:
  explicit Devices(DeviceSettings settings);
  ~Devices();
  const Driver& driver();
  // Throws Error(InvalidArgument) if there is no such GPU.
  Device& device(int ordinal);
  NcclPtr nccl();
  bool used() const;  // was any GPU opened?
  // Waits for communicators that are being ended, and then frees memory; both for a limited time. What callers hold stays
  // valid: a Device until this object ends, events and buffers as long as callers hold them.
  void close();

 private:
  const DriverPtr& open_driver();  // called with the lock held

  const DeviceSettings settings_;
  mutable std::mutex mutex_;
  DriverPtr driver_;
  NcclPtr nccl_;
  std::map<int, std::unique_ptr<Device>> devices_;
};

}  // namespace hvdlite::device
