// GPUs and their primary contexts; which context is current is each thread's own affair.
#include <unistd.h>

#include <cstring>

#include "device/cuda_abi.h"
#include "world.h"

namespace fake {
namespace {

thread_local std::vector<Context*> t_contexts;  // the current one last

}  // namespace

World& world() {
  static World& instance = *new World;
  return instance;
}

std::vector<Stream*> all_streams() {
  World& w = world();
  std::vector<Stream*> all;
  for (auto& [handle, stream] : w.streams) all.push_back(stream.get());
  for (auto& [device, context] : w.contexts) {
    all.push_back(&context.legacy);
    for (auto& [thread, stream] : context.per_thread) all.push_back(&stream);
  }
  return all;
}

Result current(Context** context) {
  *context = nullptr;
  const World& w = world();
  if (!w.initialised || w.process != getpid()) return cuda::kNotInitialized;
  if (t_contexts.empty() || t_contexts.back() == nullptr) return kInvalidContext;
  if (t_contexts.back()->retained == 0) return kInvalidContext;  // destroyed
  *context = t_contexts.back();
  return (*context)->error;
}

Result fail(int code) {
  if (code >= 700 && code < 720) {
    Lock lock(world().mutex);
    Context* context = nullptr;
    current(&context);
    if (context != nullptr && context->error == 0) context->error = code;
    notify();
  }
  return code;
}

namespace {

Context* context_of(cuda::Device device) {
  Context& context = world().contexts[device];
  context.device = device;
  context.legacy.context = &context;
  context.legacy.legacy = context.legacy.implicit = true;
  return &context;
}

Context* context_of(cuda::Context handle) {
  for (auto& [device, context] : world().contexts) {
    if (reinterpret_cast<cuda::Context>(&context) == handle) return &context;
  }
  return nullptr;
}

Result check_device(cuda::Device device) {
  if (!world().initialised) return cuda::kNotInitialized;
  return device >= 0 && device < settings().gpus ? cuda::kSuccess : kInvalidDevice;
}

}  // namespace
}  // namespace fake

using fake::Lock;
using fake::world;
using fake::cuda::Result;

FAKE_EXPORT Result cuInit(unsigned flags) {
  FAKE_ENTER("cuInit");
  Lock lock(world().mutex);
  if (flags != 0) return fake::kInvalidValue;
  if (world().initialised && world().process != getpid())
    return fake::cuda::kNotInitialized;  // forked
  if (fake::settings().gpus == 0) return fake::cuda::kNoDevice;
  world().initialised = true;
  world().process = getpid();
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuDriverGetVersion(int* version) {
  FAKE_ENTER("cuDriverGetVersion");
  *version = fake::settings().driver_version;
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuDeviceGetCount(int* count) {
  FAKE_ENTER("cuDeviceGetCount");
  Lock lock(world().mutex);
  if (!world().initialised) return fake::cuda::kNotInitialized;
  *count = fake::settings().gpus;
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuDeviceGet(fake::cuda::Device* device, int ordinal) {
  FAKE_ENTER("cuDeviceGet");
  Lock lock(world().mutex);
  if (const Result error = fake::check_device(ordinal)) return error;
  *device = ordinal;
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuDeviceGetName(char* name, int length, fake::cuda::Device device) {
  FAKE_ENTER("cuDeviceGetName");
  Lock lock(world().mutex);
  if (const Result error = fake::check_device(device)) return error;
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU");
  return fake::cuda::kSuccess;
}

// The same in every process of a host.
FAKE_EXPORT Result cuDeviceGetUuid(fake::cuda::Uuid* uuid, fake::cuda::Device device) {
  FAKE_ENTER("cuDeviceGetUuid");
  Lock lock(world().mutex);
  if (const Result error = fake::check_device(device)) return error;
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  std::uint64_t hash = 14695981039346656037u;
  for (const char* c = host; *c != '\0'; ++c)
    hash = (hash ^ static_cast<unsigned char>(*c)) * 1099511628211u;
  std::memcpy(uuid->bytes, &hash, 8);
  std::memcpy(uuid->bytes + 8, &device, 4);
  std::memcpy(uuid->bytes + 12, "fake", 4);
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuDeviceGetAttribute(int* value, int attribute, fake::cuda::Device device) {
  FAKE_ENTER("cuDeviceGetAttribute");
  Lock lock(world().mutex);
  if (const Result error = fake::check_device(device)) return error;
  const int capability = fake::settings().compute_capability;
  switch (attribute) {
    case fake::cuda::kAttributeMultiprocessorCount:
      *value = 4;
      return fake::cuda::kSuccess;
    case fake::cuda::kAttributeComputeCapabilityMajor:
      *value = capability / 10;
      return fake::cuda::kSuccess;
    case fake::cuda::kAttributeComputeCapabilityMinor:
      *value = capability % 10;
      return fake::cuda::kSuccess;
    default:
      return fake::kInvalidValue;
  }
}

FAKE_EXPORT Result cuDevicePrimaryCtxRetain(fake::cuda::Context* context,
                                            fake::cuda::Device device) {
  FAKE_ENTER("cuDevicePrimaryCtxRetain");
  Lock lock(world().mutex);
  if (const Result error = fake::check_device(device)) return error;
  fake::Context* found = fake::context_of(device);
  ++found->retained;
  *context = reinterpret_cast<fake::cuda::Context>(found);
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuDevicePrimaryCtxRelease_v2(fake::cuda::Device device) {
  const int injected = fake::fail(fake::enter("cuDevicePrimaryCtxRelease"));
  Lock lock(world().mutex);
  if (const Result error = fake::check_device(device)) return error;
  fake::Context* found = fake::context_of(device);
  if (found->retained == 0) return fake::kInvalidContext;
  if (--found->retained == 0) {
    fake::drain_all(lock, *found);
    found->error = 0;  // the next one is a new context
  }
  return injected;
}

FAKE_EXPORT Result cuCtxPushCurrent_v2(fake::cuda::Context context) {
  FAKE_ENTER("cuCtxPushCurrent");
  Lock lock(world().mutex);
  fake::Context* found = fake::context_of(context);
  if (found == nullptr || found->retained == 0) return fake::kInvalidContext;
  fake::t_contexts.push_back(found);
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuCtxPopCurrent_v2(fake::cuda::Context* context) {
  const int injected = fake::fail(fake::enter("cuCtxPopCurrent"));
  Lock lock(world().mutex);
  if (fake::t_contexts.empty()) return fake::kInvalidContext;
  if (context != nullptr) *context = reinterpret_cast<fake::cuda::Context>(fake::t_contexts.back());
  fake::t_contexts.pop_back();
  return injected;
}

FAKE_EXPORT Result cuCtxSetCurrent(fake::cuda::Context context) {
  FAKE_ENTER("cuCtxSetCurrent");
  Lock lock(world().mutex);
  fake::Context* found = context == nullptr ? nullptr : fake::context_of(context);
  if (context != nullptr && found == nullptr) return fake::kInvalidContext;
  if (!fake::t_contexts.empty()) fake::t_contexts.pop_back();
  if (found != nullptr) fake::t_contexts.push_back(found);
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuCtxGetCurrent(fake::cuda::Context* context) {
  FAKE_ENTER("cuCtxGetCurrent");
  *context = fake::t_contexts.empty()
                 ? nullptr
                 : reinterpret_cast<fake::cuda::Context>(fake::t_contexts.back());
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuCtxSynchronize() {
  FAKE_ENTER("cuCtxSynchronize");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  if (const Result error = fake::current(&context)) return error;
  return fake::drain_all(lock, *context);
}

FAKE_EXPORT Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_ENTER("cuCtxGetStreamPriorityRange");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  if (const Result error = fake::current(&context)) return error;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return fake::cuda::kSuccess;
}

namespace {

struct Name {
  Result code;
  const char* name;
  const char* text;
};
constexpr Name kNames[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

Result describe(Result error, const char* Name::* field, const char** text) {
  for (const Name& name : kNames) {
    if (name.code != error) continue;
    *text = name.*field;
    return 0;
  }
  *text = nullptr;
  return fake::kInvalidValue;
}

}  // namespace

FAKE_EXPORT Result cuGetErrorName(Result error, const char** name) {
  return describe(error, &Name::name, name);
}

FAKE_EXPORT Result cuGetErrorString(Result error, const char** text) {
  return describe(error, &Name::text, text);
}
