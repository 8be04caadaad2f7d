// What each function opens at its first use:
//
//    driver()               the library of the driver, and cuInit
//    device(1)              the driver; GPU 1, with its primary context and two pools that have no memory yet
//    device(1).kernels()    the fusion kernels of GPU 1, which may have to be compiled
//    nccl()                 the library of NCCL; no GPU
//
// driver(), device() and nccl() hold the mutex of Devices, so two threads that ask for one GPU get the same Device. kernels()
// holds only the mutex of its Device, because compiling takes seconds, and other threads can use everything else in this time.
// An object is stored only after its constructor has returned. So after a failure the next call tries again. By that time the
// cause of the failure may be gone, for example another process that had filled the GPU's memory.
//
// A Device never moves, and is never removed while Devices lives. So callers use the reference without the lock.
//
// close() first waits for communicators that are being ended, and then closes the pools. In the reverse order, freeing memory
// would wait for the communicators' kernels, which may wait for other ranks (buffers.h).
#include "device/devices.h"

#include <utility>

namespace hvdlite::device {
namespace {

// If a communicator has not ended after this time, close() goes on without it.
constexpr base::microseconds kNcclPatience{2'000'000};

}  // namespace

Device::Device(GpuPtr opened, const DeviceSettings& settings)
    : gpu(std::move(opened)),
      memory(std::make_shared<BufferPool>(gpu, BufferPool::Kind::kDevice, settings.keep_bytes)),
      pinned(std::make_shared<BufferPool>(gpu, BufferPool::Kind::kPinned, settings.keep_bytes)),
      source_(settings.kernels) {}

Device::~Device() = default;

FusionKernels& Device::kernels() {
  const std::lock_guard lock(mutex_);
  if (!kernels_) kernels_ = std::make_unique<FusionKernels>(gpu, source_);
  return *kernels_;
}

Devices::Devices(DeviceSettings settings) : settings_(std::move(settings)) {}

Devices::~Devices() { close(); }

const DriverPtr& Devices::open_driver() {
  if (!driver_) driver_ = std::make_shared<const Driver>(settings_.cuda);
  return driver_;
}

const Driver& Devices::driver() {
  const std::lock_guard lock(mutex_);
  return *open_driver();
}

Device& Devices::device(int ordinal) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Device>& device = devices_[ordinal];
  if (!device) {
    try {
      device =
          std::make_unique<Device>(std::make_shared<const Gpu>(open_driver(), ordinal), settings_);
    } catch (...) {
      // operator[] has made an empty place. used() would count it, and close() would use its null pointer.
      devices_.erase(ordinal);
      throw;
    }
  }
  return *device;
}

NcclPtr Devices::nccl() {
  const std::lock_guard lock(mutex_);
  if (!nccl_) nccl_ = std::make_shared<const Nccl>(settings_.nccl);
  return nccl_;
}

bool Devices::used() const {
  const std::lock_guard lock(mutex_);
  return !devices_.empty();
}

// The engine calls close() in its shutdown. The destructor calls it for owners that do not (csrc/c_api/fusion.cc).
void Devices::close() {
  const std::lock_guard lock(mutex_);
  if (nccl_) nccl_->wait_for_endings(kNcclPatience);
  for (const auto& [ordinal, device] : devices_) {
    device->memory->close();
    device->pinned->close();
  }
}

}  // namespace hvdlite::device
