// Who does what:
//
//    a thread with an event    reads the clock, fills a TimelineEvent, and appends it to queue_ under mutex_
//    the writer thread         sleeps while the queue is empty; then waits kPause longer, takes the whole queue, and writes it
//    start(), stop()           start and join the writer thread, one at a time (control_)
//
// The writer thread gives the queue its own empty vector and takes the full one. So it holds the lock for a few stores, and
// both vectors keep their capacity. It formats and writes without the lock.
//
// Order of events: a caller makes the event of a submission before it pushes the entries to the engine's queue. So the writer
// sees kSubmitted of an operation before every other stage of the operation. (If the trace begins after the submission, or the
// event is dropped, the writer never sees kSubmitted.)
//
// end() first clears the flag `on`, so that threads that read the flag later make no events. Then it sets stopping_, and joins
// the writer thread, which writes what is queued before it returns. A thread that has read the flag earlier may append an event
// even after that: the next start() drops this event.
#include "engine/observe/timeline.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>

#include "engine/observe/timeline_writer.h"

namespace hvdlite::engine {
namespace {

// More events than a training step of usual models makes. If this many wait, the disk is too slow.
constexpr std::size_t kMostQueued = std::size_t{1} << 17;
// An event is in the file after about this time.
constexpr std::chrono::milliseconds kPause{50};

}  // namespace

// start() makes the writer, and with it the file, before it ends an earlier trace to another file: if the file cannot be made,
// the earlier trace goes on. It sets the flag `on` last, when the queue and the thread are ready.
void Timeline::start(const std::string& path, std::size_t max_bytes, bool cycles) {
  const std::lock_guard control(control_);
  if (path == path_) end();  // the new writer truncates the file
  auto writer = std::make_unique<TimelineWriter>(path, max_bytes, owner_, time_);
  end();
  writer_ = std::move(writer);
  path_ = path;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = false;
    // Drops events that came after the last stop, for example the event of a wait that ended after the stop.
    queue_.clear();
    dropped_ = 0;
  }
  cycles_.store(cycles, std::memory_order_relaxed);
  try {
    thread_ = std::thread([this] { write_until_stopped(); });
  } catch (...) {
    writer_.reset();
    throw;
  }
  on_.store(true, std::memory_order_release);
}

void Timeline::stop() {
  const std::lock_guard control(control_);
  end();
}

void Timeline::end() {
  if (!thread_.joinable()) return;
  on_.store(false, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  writer_.reset();
}

// Only an event that finds the queue empty wakes the writer thread. While the queue is not empty, that thread writes, or makes
// its pause (kPause), or is about to wake. Either all events of one call are queued, or all are dropped.
void Timeline::note(std::span<TimelineEvent> events) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() + events.size() > kMostQueued) {
      dropped_ += events.size();
      return;
    }
    first = queue_.empty();
    for (TimelineEvent& event : events) queue_.push_back(std::move(event));
  }
  if (first) wake_.notify_one();
}

void Timeline::write_until_stopped() {
  base::name_this_thread("hvdlite-trace");
  std::vector<TimelineEvent> events;
  for (;;) {
    bool stopping = false;
    std::uint64_t dropped = 0;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      // Waits for a few more events: one large write is cheaper than several small ones.
      wake_.wait_for(lock, kPause, [&] { return stopping_; });
      events.swap(queue_);
      stopping = stopping_;
      dropped = std::exchange(dropped_, 0);
    }
    writer_->write(events, dropped);
    if (stopping) return;
    events.clear();  // without the mutex, because this may free requests
  }
}

void Timeline::submitted(std::span<const Entry> entries) {
  const base::Clock::time_point now = time_.now();
  std::vector<TimelineEvent> events(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    events[i].kind = TimelineEvent::Kind::kSubmitted;
    events[i].number = entries[i].completion->record;
    events[i].time = now;
    events[i].request = entries[i].request;
  }
  note(events);
}

// All entries get the same time. With kStarted they also get the same number in `fused`, by which a reader of the file finds
// the tensors of a FusedOp.
void Timeline::reached(std::span<const Entry> entries, Stage stage) {
  const base::Clock::time_point now = time_.now();
  const std::uint32_t fused =
      stage == Stage::kStarted ? fused_.fetch_add(1, std::memory_order_relaxed) + 1 : 0;
  std::vector<TimelineEvent> events;
  events.reserve(entries.size());
  for (const Entry& entry : entries) {
    if (!entry.request) continue;
    TimelineEvent& event = events.emplace_back();
    event.stage = stage;
    event.fused = fused;
    event.number = entry.completion->record;
    event.time = now;
  }
  note(events);
}

void Timeline::announcing() {
  if (!cycles_.load(std::memory_order_relaxed)) return;
  std::array<TimelineEvent, 1> event;
  event[0].kind = TimelineEvent::Kind::kCycle;
  event[0].time = time_.now();
  note(event);
}

Timeline::WaitSpan::WaitSpan(Timeline& timeline, std::uint64_t number)
    : timeline_(timeline), number_(number), since_(timeline.time_.now()) {}

// One event has both times of the wait. So the writer needs no table of callers that wait, and if the event is dropped, the
// whole span is missing.
Timeline::WaitSpan::~WaitSpan() {
  std::array<TimelineEvent, 1> event;
  event[0].kind = TimelineEvent::Kind::kWait;
  event[0].number = number_;
  event[0].thread = static_cast<std::int32_t>(syscall(SYS_gettid));
  event[0].since = since_;
  event[0].time = timeline_.time_.now();
  timeline_.note(event);
}

}  // namespace hvdlite::engine
