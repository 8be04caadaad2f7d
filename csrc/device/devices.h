// The GPU resources of one owner, such as an engine: the driver, NCCL, and the GPUs used so far with their buffers and kernels.
// Thread: any; one lock of Devices, and one of each Device for its kernels. They are held while something is opened for the
// first time; close() holds the first. Owns: all of it. Blocks: on the first use of each; close(). Throws: what each part
// throws. Each call tries again, so that a cause which has gone does not stay an error.
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
  // Loaded at the first use, so that programs without them need no compiler.
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
  // Frees memory, and waits for communicators that are being ended; both for a limited time. What callers hold stays valid: a
  // Device until this object ends, events and buffers as long as they are held.
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
