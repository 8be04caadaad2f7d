// For tests: what is left, starting anew, and errors that come by themselves.
#include <functional>
#include <string>

#include "driver/memory.h"
#include "world.h"

using fake::Lock;
using fake::world;

namespace {

void for_each_companion(const std::function<void(const fake::Companion&)>& action) {
  for (const fake::Companion* one = world().companions; one != nullptr; one = one->next) {
    action(*one);
  }
}

}  // namespace

void fake::make_known(Companion& companion) {
  companion.next = world().companions;
  while (!world().companions.compare_exchange_weak(companion.next, &companion)) {
  }
}

// A line for each kind of thing that is still there; "" if nothing is. Valid until this thread asks again.
FAKE_EXPORT const char* fake_leaks() {
  thread_local std::string text;
  Lock lock(world().mutex);
  text = fake::memory_leaks();
  const auto count = [&](const char* what, std::size_t number) {
    if (number > 0) text += std::to_string(number) + " " + what + "\n";
  };
  std::size_t streams = 0;
  for (const auto& [handle, stream] : world().streams) streams += stream->destroyed ? 0 : 1;
  std::size_t contexts = 0;
  for (const auto& [device, context] : world().contexts) {
    contexts += static_cast<std::size_t>(context.retained);
  }
  count("streams", streams);
  count("events", world().events.size());
  count("modules", world().modules.size());
  count("references to contexts", contexts);
  for_each_companion([&](const fake::Companion& companion) { text += companion.leaks(); });
  return text.c_str();
}

// Everything as in a new process: settings, counts, errors; what is still there is taken away.
FAKE_EXPORT void fake_reset() {
  fake::reset_control();
  Lock lock(world().mutex);
  for_each_companion([](const fake::Companion& companion) { companion.reset(); });
  world().changed.wait(lock, [] { return !world().executing; });
  for (fake::Stream* stream : fake::all_streams()) stream->queue.clear();
  fake::reset_memory();
  world().events.clear();
  world().streams.clear();
  world().modules.clear();
  for (auto& [device, context] : world().contexts) {
    context.retained = 0;
    context.error = 0;
    context.per_thread.clear();
    context.legacy.capture_status = 0;
    context.legacy.held = false;
  }
  fake::notify();
}

// The GPU breaks down by itself: this error is what its context returns from now on.
FAKE_EXPORT void fake_async_error(int device, int code) {
  Lock lock(world().mutex);
  world().contexts[device].error = code;
  fake::notify();
}

// Sleeps until there is nothing in any stream.
FAKE_EXPORT void fake_idle() {
  Lock lock(world().mutex);
  for (auto& [device, context] : world().contexts) fake::drain_all(lock, context);
}
