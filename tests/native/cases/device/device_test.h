// What the tests of csrc/device share: the fake driver and the fake NCCL, which each has in its process to itself.
// Thread: main's. Owns: nothing. Blocks: as the tests do. Throws: what fails a case.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "device/buffers.h"
#include "device/driver.h"
#include "device/gpu.h"
#include "device/nccl.h"
#include "harness.h"

namespace device_test {

namespace device = hvdlite::device;
namespace cuda = hvdlite::device::cuda;
using hvdlite::base::Error;
using hvdlite::base::ErrorCode;
using native_test::failed;

// The fakes' libraries, and their controls.
const std::string& cuda_library();
const std::string& nccl_library();
void* control(const char* name);
void nccl_error(int rank, int code, const char* text);  // what its communicators report from now on
void set(const char* name, const char* value);
void fail(const char* function, long nth, int code);  // the nth call from now on
long calls(const char* function);
std::string leaks();  // once all streams are empty
void busy(const device::Gpu& gpu, cuda::Stream stream, double seconds);
void capture(const device::Gpu& gpu, cuda::Stream stream, int status);

// Nothing that is put into the stream begins before it is let go, however long that takes.
class Held {
 public:
  Held(device::GpuPtr gpu, cuda::Stream stream);
  ~Held();
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  void let_go();

 private:
  const device::GpuPtr gpu_;
  const cuda::Stream stream_;
};

device::DriverPtr open_driver();
device::GpuPtr open_gpu(int ordinal = 0);

// The text of the error that work() throws; fails if there is none, or one of another kind.
std::string error_of(ErrorCode code, const std::function<void()>& work);

// Four bytes on the GPU, as the host sees them once `stream` has come to this.
struct Word {
  explicit Word(const device::GpuPtr& gpu);
  int after(cuda::Stream stream, const void* device_word);

  device::GpuPtr gpu;
  std::shared_ptr<device::BufferPool> pool;
  device::Buffer host;
};

}  // namespace device_test

#define EXPECT_NO_LEAKS()                                                                       \
  do {                                                                                          \
    const std::string left = ::device_test::leaks();                                            \
    if (!left.empty()) ::native_test::failed(__FILE__, __LINE__, "left on the GPUs:\n" + left); \
  } while (false)
