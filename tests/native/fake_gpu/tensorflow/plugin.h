// What the device and the op of the plug-in share.
#pragma once

#include "device/cuda_abi.h"
#include "tensorflow/plugin_abi.h"

// The fake driver's functions, linked.
namespace fake_driver {
using namespace hvdlite::device::cuda;
#define FAKE_DECLARE(name, symbol, type) \
  using name##Type = type;               \
  extern "C" name##Type cu##name __asm__(symbol);
HVDLITE_CUDA_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE
}  // namespace fake_driver

namespace fake::tensorflow {

namespace cuda = hvdlite::device::cuda;
using namespace fake_driver;

// As Eigen has it: what TensorFlow's kernels for GPUs find their stream by.
struct StreamInterface {
  virtual ~StreamInterface() = default;
  virtual const cuda::Stream& stream() const = 0;
};

struct GpuDevice {
  const StreamInterface* stream;
  int max_blocks;
};

struct Stream : StreamInterface {
  Stream(int on, cuda::Stream made) : gpu(on), handle(made) {}
  const cuda::Stream& stream() const override { return handle; }

  const int gpu;
  const cuda::Stream handle;
  const GpuDevice device{this, 1024};
};

// A GPU's context is the thread's own while it lives.
class OnGpu {
 public:
  explicit OnGpu(int gpu);
  ~OnGpu();
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
};

}  // namespace fake::tensorflow
