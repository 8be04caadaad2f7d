// The controls of the fakes, which lie where the build has put them.
#include "device_test.h"

#include <dlfcn.h>

namespace device_test {
namespace {

void* find_in(const std::string& path, const char* name) {
  void* library = dlopen(path.c_str(), RTLD_NOW);
  void* found = library != nullptr ? dlsym(library, name) : nullptr;
  if (found == nullptr) failed(__FILE__, __LINE__, std::string(name) + ": " + dlerror());
  return found;
}

template <typename Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(control(name));
}

}  // namespace

const std::string& cuda_library() {
  static const std::string path = FAKE_CUDA;
  return path;
}

const std::string& nccl_library() {
  static const std::string path = FAKE_NCCL;
  return path;
}

void* control(const char* name) { return find_in(cuda_library(), name); }

void nccl_error(int rank, int code, const char* text) {
  reinterpret_cast<void (*)(int, int, const char*)>(find_in(nccl_library(), "fake_nccl_error"))(
      rank, code, text);
}

void set(const char* name, const char* value) {
  find<void(const char*, const char*)>("fake_set")(name, value);
}

void fail(const char* function, long nth, int code) {
  find<void(const char*, long, int)>("fake_fail")(function, nth, code);
}

long calls(const char* function) { return find<long(const char*)>("fake_calls")(function); }

std::string leaks() {
  find<void()>("fake_idle")();
  return find<const char*()>("fake_leaks")();
}

void busy(const device::Gpu& gpu, cuda::Stream stream, double seconds) {
  const device::Current current(gpu);
  EXPECT(find<int(cuda::Stream, double)>("fake_busy")(stream, seconds) == 0);
}

static void hold(const device::Gpu& gpu, cuda::Stream stream, bool held) {
  const device::Current current(gpu);
  EXPECT(find<int(const cuda::Stream*, int, int)>("fake_hold")(&stream, 1, held) == 0);
}

Held::Held(device::GpuPtr gpu, cuda::Stream stream) : gpu_(std::move(gpu)), stream_(stream) {
  hold(*gpu_, stream_, true);
}

Held::~Held() { let_go(); }

void Held::let_go() { hold(*gpu_, stream_, false); }

void capture(const device::Gpu& gpu, cuda::Stream stream, int status) {
  const device::Current current(gpu);
  EXPECT(find<int(cuda::Stream, int)>("fake_capture")(stream, status) == 0);
}

device::DriverPtr open_driver() {
  return std::make_shared<const device::Driver>(device::Candidates{cuda_library()});
}

device::GpuPtr open_gpu(int ordinal) {
  return std::make_shared<const device::Gpu>(open_driver(), ordinal);
}

std::string error_of(ErrorCode code, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.code() != code) {
      failed(__FILE__, __LINE__,
             "code " + std::to_string(static_cast<int>(error.code())) + ": " + error.what());
    }
    return error.what();
  }
  failed(__FILE__, __LINE__, "no error");
}

Word::Word(const device::GpuPtr& on)
    : gpu(on),
      pool(std::make_shared<device::BufferPool>(on, device::BufferPool::Kind::kPinned, 4096)),
      host(pool->get(sizeof(int), nullptr)) {}

int Word::after(cuda::Stream stream, const void* device_word) {
  gpu->copy(host.data(), device_word, sizeof(int), stream);
  gpu->record(stream)->synchronize();
  return *static_cast<const int*>(host.data());
}

}  // namespace device_test
