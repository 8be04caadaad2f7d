// Events: a wait is for the record that was the latest when the wait was asked for; without any record it is over at once.
#include "world.h"

using fake::Lock;
using fake::world;
using fake::cuda::Result;

namespace fake {
namespace {

Event* find_event(cuda::Event handle) {
  const auto found = world().events.find(handle);
  return found == world().events.end() ? nullptr : found->second.get();
}

}  // namespace
}  // namespace fake

FAKE_EXPORT Result cuEventCreate(fake::cuda::Event* event, unsigned flags) {
  FAKE_ENTER("cuEventCreate");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  if (const Result error = fake::current(&context)) return error;
  if (event == nullptr) return fake::kInvalidValue;
  auto made = std::make_unique<fake::Event>();
  made->context = context;
  made->flags = flags;
  *event = reinterpret_cast<fake::cuda::Event>(made.get());
  world().events[made.get()] = std::move(made);
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuEventDestroy_v2(fake::cuda::Event handle) {
  const int injected = fake::fail(fake::enter("cuEventDestroy"));
  Lock lock(world().mutex);
  const fake::Event* event = fake::find_event(handle);
  if (event == nullptr) return fake::kInvalidHandle;
  const Result error = event->context->error;
  world().events.erase(handle);
  return injected != 0 ? injected : error;
}

FAKE_EXPORT Result cuEventRecord(fake::cuda::Event handle, fake::cuda::Stream stream_handle) {
  FAKE_ENTER("cuEventRecord");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  if (const Result error = fake::current(&context)) return error;
  fake::Stream* stream = nullptr;
  if (const Result error = fake::find_stream(stream_handle, context, &stream)) return error;
  fake::Event* event = fake::find_event(handle);
  if (event == nullptr || event->context != stream->context) return fake::kInvalidHandle;
  if (stream->capture_status != 0) return fake::kCaptureUnsupported;
  auto record = std::make_shared<fake::Record>();
  event->latest = record;
  fake::Operation operation;
  operation.what = "cuEventRecord";
  operation.run = [record]() -> Result {
    record->when = fake::Clock::now();
    record->done.store(true);
    return fake::cuda::kSuccess;
  };
  fake::enqueue(*stream, std::move(operation));
  return stream->context->error;
}

FAKE_EXPORT Result cuStreamWaitEvent(fake::cuda::Stream stream_handle, fake::cuda::Event handle,
                                     unsigned) {
  FAKE_ENTER("cuStreamWaitEvent");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  if (const Result error = fake::current(&context)) return error;
  fake::Stream* stream = nullptr;
  if (const Result error = fake::find_stream(stream_handle, context, &stream)) return error;
  const fake::Event* event = fake::find_event(handle);
  if (event == nullptr) return fake::kInvalidHandle;
  if (event->latest == nullptr) return stream->context->error;
  fake::Operation operation;
  operation.what = "cuStreamWaitEvent";
  // A record in a context that broke down never comes.
  operation.ready = [record = event->latest, recorded_in = event->context] {
    return record->done.load() || recorded_in->error != 0;
  };
  fake::enqueue(*stream, std::move(operation));
  return stream->context->error;
}

FAKE_EXPORT Result cuEventQuery(fake::cuda::Event handle) {
  FAKE_ENTER("cuEventQuery");
  Lock lock(world().mutex);
  const fake::Event* event = fake::find_event(handle);
  if (event == nullptr) return fake::kInvalidHandle;
  if (const Result error = fake::unsafe_in_capture()) return error;
  if (event->context->error != 0) return event->context->error;
  const bool done = event->latest == nullptr || event->latest->done.load();
  return done ? fake::cuda::kSuccess : fake::cuda::kNotReady;
}

FAKE_EXPORT Result cuEventSynchronize(fake::cuda::Event handle) {
  FAKE_ENTER("cuEventSynchronize");
  Lock lock(world().mutex);
  const fake::Event* event = fake::find_event(handle);
  if (event == nullptr) return fake::kInvalidHandle;
  if (const Result error = fake::unsafe_in_capture()) return error;
  fake::Context& context = *event->context;
  const fake::RecordPtr record = event->latest;
  if (record == nullptr) return context.error;
  world().changed.wait(lock, [&] { return record->done.load() || context.error != 0; });
  return context.error;
}

FAKE_EXPORT Result cuEventElapsedTime(float* milliseconds, fake::cuda::Event from,
                                      fake::cuda::Event to) {
  FAKE_ENTER("cuEventElapsedTime");
  Lock lock(world().mutex);
  const fake::Event* first = fake::find_event(from);
  const fake::Event* second = fake::find_event(to);
  if (first == nullptr || second == nullptr || first->latest == nullptr ||
      second->latest == nullptr ||
      ((first->flags | second->flags) & fake::cuda::kEventDisableTiming) != 0) {
    return fake::kInvalidHandle;
  }
  if (!first->latest->done.load() || !second->latest->done.load()) return fake::cuda::kNotReady;
  *milliseconds =
      std::chrono::duration<float, std::milli>(second->latest->when - first->latest->when).count();
  return fake::cuda::kSuccess;
}
