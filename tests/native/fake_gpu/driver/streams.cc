// Streams, and what is put into them but for kernels: copies, fills, and for tests work that only takes time.
#include <cstring>

#include "driver/memory.h"
#include "world.h"

namespace fake {

Result find_stream(cuda::Stream handle, Context* context, Stream** stream) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number == 0 || number == 1) {
    *stream = &context->legacy;
  } else if (number == 2) {
    Stream& own = context->per_thread[std::this_thread::get_id()];
    own.context = context;
    own.implicit = true;
    *stream = &own;
  } else {
    const auto found = world().streams.find(handle);
    if (found == world().streams.end() || found->second->destroyed) return kInvalidHandle;
    *stream = found->second.get();
  }
  return cuda::kSuccess;
}

namespace {

constexpr int kCaptureModeRelaxed = 2;
thread_local int t_capture_mode = 0;  // global: the strictest

bool any_capture(const Context* context) {
  for (const Stream* stream : all_streams()) {
    const bool concerned = context == nullptr || (stream->context == context &&
                                                  (stream->flags & cuda::kStreamNonBlocking) == 0);
    if (stream->capture_status != 0 && concerned) return true;
  }
  return false;
}

}  // namespace

Result unsafe_in_capture() {
  if (t_capture_mode == kCaptureModeRelaxed || !any_capture(nullptr)) return cuda::kSuccess;
  return kCaptureUnsupported;
}

namespace {

// The stream for a call that enqueues something.
Result target(cuda::Stream handle, Context** context, Stream** stream) {
  if (const Result error = current(context)) return error;
  if (const Result error = find_stream(handle, *context, stream)) return error;
  return (*stream)->context->error;
}

struct Copy {
  cuda::Address to = 0;
  cuda::Address from = 0;
  std::size_t bytes = 0;
  std::shared_ptr<std::vector<char>> staged;  // what pageable memory held at the time of the call
};

Result run_copy(const Copy& copy) {
  void* to = reach(copy.to, copy.bytes, "a copy to memory");
  const void* from =
      copy.staged ? copy.staged->data() : reach(copy.from, copy.bytes, "a copy from memory");
  if (to == nullptr || from == nullptr) return kIllegalAddress;
  std::memmove(to, from, copy.bytes);
  return cuda::kSuccess;
}

// Memory of the host that the driver does not know is read at once, as it is; whoever has it written to waits.
Result start_copy(Lock& lock, Copy copy, Stream& stream) {
  const Place to = place_of(copy.to, copy.bytes);
  const Place from = place_of(copy.from, copy.bytes);
  const bool lost_to = to.where == Where::kPageable && looks_like_device(copy.to);
  const bool lost_from = from.where == Where::kPageable && looks_like_device(copy.from);
  if (!to.inside || !from.inside || lost_to || lost_from) return kInvalidValue;
  if (from.where == Where::kPageable) {
    const char* first = reinterpret_cast<const char*>(copy.from);
    copy.staged = std::make_shared<std::vector<char>>(first, first + copy.bytes);
  }
  Operation operation;
  operation.what = "cuMemcpyAsync";
  operation.run = [copy] { return run_copy(copy); };
  enqueue(stream, std::move(operation));
  return to.where == Where::kPageable ? drain(lock, stream) : cuda::kSuccess;
}

}  // namespace
}  // namespace fake

using fake::Lock;
using fake::world;
using fake::cuda::Address;
using fake::cuda::Result;

FAKE_EXPORT Result cuMemcpyAsync(Address to, Address from, std::size_t bytes,
                                 fake::cuda::Stream handle) {
  FAKE_ENTER("cuMemcpyAsync");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  fake::Stream* stream = nullptr;
  if (const Result error = fake::target(handle, &context, &stream)) return error;
  if (bytes == 0) return fake::cuda::kSuccess;
  return fake::start_copy(lock, {to, from, bytes, nullptr}, *stream);
}

FAKE_EXPORT Result cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes,
                                   fake::cuda::Stream handle) {
  FAKE_ENTER("cuMemsetD8Async");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  fake::Stream* stream = nullptr;
  if (const Result error = fake::target(handle, &context, &stream)) return error;
  if (stream->context != context) return fake::kInvalidHandle;
  if (bytes == 0) return fake::cuda::kSuccess;
  const fake::Place place = fake::place_of(to, bytes);
  if (place.where == fake::Where::kPageable || !place.inside) return fake::kInvalidValue;
  fake::Operation operation;
  operation.what = "cuMemsetD8Async";
  operation.run = [=]() -> Result {
    void* memory = fake::reach(to, bytes, "a fill");
    if (memory == nullptr) return fake::kIllegalAddress;
    std::memset(memory, value, bytes);
    return fake::cuda::kSuccess;
  };
  fake::enqueue(*stream, std::move(operation));
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuStreamCreateWithPriority(fake::cuda::Stream* stream, unsigned flags,
                                              int priority) {
  FAKE_ENTER("cuStreamCreateWithPriority");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  if (const Result error = fake::current(&context)) return error;
  if (stream == nullptr || flags > fake::cuda::kStreamNonBlocking) return fake::kInvalidValue;
  auto made = std::make_unique<fake::Stream>();
  made->context = context;
  made->flags = flags;
  made->priority = priority;
  *stream = reinterpret_cast<fake::cuda::Stream>(made.get());
  world().streams[made.get()] = std::move(made);
  return fake::cuda::kSuccess;
}

// What is in it goes on.
FAKE_EXPORT Result cuStreamDestroy_v2(fake::cuda::Stream handle) {
  const int injected = fake::fail(fake::enter("cuStreamDestroy"));
  Lock lock(world().mutex);
  const auto found = world().streams.find(handle);
  if (found == world().streams.end() || found->second->destroyed) return fake::kInvalidHandle;
  const Result error = found->second->context->error;
  found->second->destroyed = true;
  if (found->second->queue.empty()) world().streams.erase(found);
  return injected != 0 ? injected : error;
}

FAKE_EXPORT Result cuStreamSynchronize(fake::cuda::Stream handle) {
  FAKE_ENTER("cuStreamSynchronize");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  fake::Stream* stream = nullptr;
  if (const Result error = fake::target(handle, &context, &stream)) return error;
  if (const Result error = fake::unsafe_in_capture()) return error;
  return fake::drain(lock, *stream);
}

FAKE_EXPORT Result cuStreamQuery(fake::cuda::Stream handle) {
  FAKE_ENTER("cuStreamQuery");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  fake::Stream* stream = nullptr;
  if (const Result error = fake::target(handle, &context, &stream)) return error;
  return stream->queue.empty() ? fake::cuda::kSuccess : fake::cuda::kNotReady;
}

FAKE_EXPORT Result cuStreamIsCapturing(fake::cuda::Stream handle, int* status) {
  FAKE_ENTER("cuStreamIsCapturing");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  fake::Stream* stream = nullptr;
  if (const Result error = fake::target(handle, &context, &stream)) return error;
  // The legacy default stream would be in order with a blocking stream that is being captured.
  if (stream->legacy && fake::any_capture(context)) return fake::kCaptureImplicit;
  *status = stream->capture_status;
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuThreadExchangeStreamCaptureMode(int* mode) {
  FAKE_ENTER("cuThreadExchangeStreamCaptureMode");
  if (mode == nullptr || *mode < 0 || *mode > fake::kCaptureModeRelaxed) return fake::kInvalidValue;
  std::swap(*mode, fake::t_capture_mode);
  return fake::cuda::kSuccess;
}

// --- for tests ---------------------------------------------------------------------------------------------------------

// Status 0: no capture, 1: being captured.
FAKE_EXPORT Result fake_capture(fake::cuda::Stream handle, int status) {
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  fake::Stream* stream = nullptr;
  if (const Result error = fake::target(handle, &context, &stream)) return error;
  stream->capture_status = status;
  return fake::cuda::kSuccess;
}

// Work of the GPU that takes so long and does nothing; other streams go on meanwhile.
FAKE_EXPORT Result fake_busy(fake::cuda::Stream handle, double seconds) {
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  fake::Stream* stream = nullptr;
  if (const Result error = fake::target(handle, &context, &stream)) return error;
  fake::Operation operation;
  operation.what = "fake_busy";
  operation.poll = true;
  operation.ready = [seconds, begun = fake::Clock::time_point()]() mutable {
    const auto now = fake::Clock::now();
    if (begun == fake::Clock::time_point()) begun = now;
    return std::chrono::duration<double>(now - begun).count() >= seconds;
  };
  fake::enqueue(*stream, std::move(operation));
  return fake::cuda::kSuccess;
}

// As long as they are held, nothing in these streams of the current context begins; all are let go at the same moment.
FAKE_EXPORT Result fake_hold(const fake::cuda::Stream* handles, int count, int held) {
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  if (const Result error = fake::current(&context)) return error;
  for (int i = 0; i < count; ++i) {
    fake::Stream* stream = nullptr;
    if (const Result error = fake::find_stream(handles[i], context, &stream)) return error;
    stream->held = held != 0;
  }
  fake::notify();
  return fake::cuda::kSuccess;
}

FAKE_EXPORT int fake_priority(fake::cuda::Stream handle) {
  Lock lock(world().mutex);
  const auto found = world().streams.find(handle);
  return found == world().streams.end() ? 1 : found->second->priority;
}
