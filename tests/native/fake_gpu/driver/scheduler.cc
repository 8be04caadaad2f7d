// The thread that executes what is in the streams: of all streams whose first operation may run it takes any, sometimes after
// a pause. What only happened to be in order without an event does not stay in order for long.
#include <cstdio>

#include "driver/memory.h"
#include "world.h"

namespace fake {
namespace {

constexpr std::chrono::microseconds kPollInterval{50};

bool takes_part_in_legacy_order(const Stream& stream) {
  return (stream.flags & cuda::kStreamNonBlocking) == 0;
}

// The legacy default stream and the blocking streams of its context wait for what came before in each other.
bool legacy_order_allows(Stream& stream) {
  const std::uint64_t number = stream.queue.front().number;
  if (!takes_part_in_legacy_order(stream)) return true;
  if (!stream.legacy) {
    const Stream& legacy = stream.context->legacy;
    return legacy.queue.empty() || legacy.queue.front().number > number;
  }
  for (const Stream* other : all_streams()) {
    if (other->context == stream.context && takes_part_in_legacy_order(*other) &&
        !other->queue.empty() && other->queue.front().number < number) {
      return false;
    }
  }
  return true;
}

// All streams whose first operation may run now; *poll: somebody has to be asked again.
std::vector<Stream*> runnable_streams(bool* poll) {
  std::vector<Stream*> runnable;
  for (Stream* stream : all_streams()) {
    if (stream->queue.empty() || stream->held || !legacy_order_allows(*stream)) continue;
    const Operation& first = stream->queue.front();
    if (stream->context->error != 0 || !first.ready || first.ready()) {
      runnable.push_back(stream);
    } else {
      *poll = *poll || first.poll;
    }
  }
  return runnable;
}

void pause_at_random(Lock& lock) {
  const Settings s = settings();
  if (s.delay_us <= 0) return;
  std::mt19937_64& random = random_source();
  if (static_cast<int>(random() % 100) >= s.delay_percent) return;
  const std::chrono::microseconds pause(1 + random() % static_cast<std::uint64_t>(s.delay_us));
  lock.unlock();
  std::this_thread::sleep_for(pause);
  lock.lock();
}

// After an error in the context nothing of it runs any more; whoever waits for an event of it waits no longer.
void execute_first(Lock& lock, Stream& stream) {
  World& w = world();
  if (stream.queue.empty()) return;  // a reset took it away
  const Operation operation = std::move(stream.queue.front());
  const bool marker = operation.what[0] == '\0';
  w.executing = true;
  w.executing_in = stream.context;
  Result result = 0;
  if (operation.run && (stream.context->error == 0 || marker)) {
    lock.unlock();
    result = operation.run();
    lock.lock();
  }
  if (result != 0 && stream.context->error == 0) {
    std::fprintf(stderr, "fake GPU %d: %s failed with %d; its context is of no more use\n",
                 stream.context->device, operation.what, result);
    stream.context->error = result;
  }
  w.executing = false;
  w.executing_in = nullptr;
  if (!stream.queue.empty()) stream.queue.pop_front();
  if (stream.destroyed && stream.queue.empty()) {
    for (auto it = w.streams.begin(); it != w.streams.end(); ++it) {
      if (it->second.get() == &stream) {
        w.streams.erase(it);
        break;
      }
    }
  }
  w.changed.notify_all();
}

void schedule() {
  World& w = world();
  Lock lock(w.mutex);
  for (;;) {
    bool poll = false;
    std::vector<Stream*> runnable = runnable_streams(&poll);
    if (runnable.empty()) {
      if (poll) {
        w.changed.wait_for(lock, kPollInterval);
      } else {
        w.changed.wait(lock);
      }
      continue;
    }
    const std::size_t choice = random_source()() % runnable.size();
    w.executing = true;  // nothing is taken away meanwhile
    pause_at_random(lock);
    execute_first(lock, *runnable[choice]);
  }
}

}  // namespace

void enqueue(Stream& stream, Operation operation) {
  World& w = world();
  for (const Companion* one = w.companions; one != nullptr; one = one->next) {
    // For tests to count.
    if (one->owes != nullptr && one->owes(stream)) enter("enqueued_too_early");
  }
  operation.number = ++w.operations;
  stream.queue.push_back(std::move(operation));
  if (!w.started) {
    w.started = true;
    std::thread(schedule).detach();
  }
  w.changed.notify_all();
}

namespace {

// An operation without a name runs even in a broken context.
std::shared_ptr<std::atomic<bool>> enqueue_marker(Stream& stream) {
  auto done = std::make_shared<std::atomic<bool>>(false);
  Operation marker;
  marker.run = [done] {
    done->store(true);
    return Result{0};
  };
  enqueue(stream, std::move(marker));
  return done;
}

}  // namespace

Result drain(Lock& lock, Stream& stream) {
  Context& context = *stream.context;
  const auto done = enqueue_marker(stream);
  world().changed.wait(lock, [&] { return done->load(); });
  return context.error;
}

Result drain_all(Lock& lock, Context& context) {
  std::vector<std::shared_ptr<std::atomic<bool>>> markers;
  for (Stream* stream : all_streams()) {
    if (stream->context == &context && !stream->queue.empty())
      markers.push_back(enqueue_marker(*stream));
  }
  world().changed.wait(lock, [&] {
    for (const auto& done : markers) {
      if (!done->load()) return false;
    }
    return true;
  });
  return context.error;
}

void notify() { world().changed.notify_all(); }

}  // namespace fake
