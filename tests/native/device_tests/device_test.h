// What the tests of csrc/device share: a test is a function that runs in a process of its own, on the fake driver.
// Thread: main's. Owns: nothing. Blocks: as the tests do. Throws: Failure, which ends the process with 1.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "device/buffers.h"
#include "device/driver.h"
#include "device/gpu.h"
#include "device/nccl.h"

namespace device_test {

namespace device = hvdlite::device;
namespace cuda = hvdlite::device::cuda;
using hvdlite::base::Error;
using hvdlite::base::ErrorCode;

std::map<std::string, void (*)()>& tests();

struct Registration {
  Registration(const char* name, void (*test)()) { tests()[name] = test; }
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void failed(const char* file, int line, const std::string& what);

// The fakes' libraries, from the command line, and their controls.
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

#define TEST(name)                                                                   \
  static void test_##name();                                                         \
  static const ::device_test::Registration registration_##name(#name, &test_##name); \
  static void test_##name()

#define EXPECT(condition)                                                                \
  do {                                                                                   \
    if (!(condition)) ::device_test::failed(__FILE__, __LINE__, "expected " #condition); \
  } while (false)

#define EXPECT_HAS(text, part)                                                      \
  do {                                                                              \
    const std::string has_text = (text);                                            \
    if (has_text.find(part) == std::string::npos) {                                 \
      ::device_test::failed(__FILE__, __LINE__, "no \"" part "\" in: " + has_text); \
    }                                                                               \
  } while (false)

#define EXPECT_NO_LEAKS()                                                                       \
  do {                                                                                          \
    const std::string left = ::device_test::leaks();                                            \
    if (!left.empty()) ::device_test::failed(__FILE__, __LINE__, "left on the GPUs:\n" + left); \
  } while (false)
