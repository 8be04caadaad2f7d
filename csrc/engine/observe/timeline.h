// A trace of this rank's operations for Chrome's and Perfetto's viewers: what each waited for, and when its data moved.
// Thread: any. Owns: its queue, its thread, its file. Blocks: start and stop only. Throws: Error(InvalidArgument) from start.
//
//   callers, token holder ──► queue (one lock, a few stores) ──► writer thread: pairs of events become spans ──► file
//
// Whoever has an event looks first whether one is written: off, which is the normal case, it costs the load of one flag. On, nothing waits for the file: where the queue is full,
// events are dropped and counted. The file ends with the closing bracket after every write, so it is valid JSON after a crash,
// too. It is bounded: at half the limit it becomes FILE.old, in place of the one before, and a new one begins.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/time_source.h"
#include "engine/model/entry.h"
#include "engine/observe/flight_recorder.h"
#include "engine/observe/timeline_writer.h"

namespace hvdlite::engine {

class Timeline {
 public:
  using Stage = FlightRecorder::Stage;

  // on: it keeps this true while a file is written.
  Timeline(TimelineOwner owner, base::TimeSource time, std::atomic<bool>& on)
      : owner_(owner), time_(time), on_(on) {}
  ~Timeline() { stop(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Begins a file, or another one. cycles: a mark whenever this rank announces operations.
  void start(const std::string& path, std::size_t max_bytes, bool cycles);
  // All that was noted until now is in the file when it returns.
  void stop();

  // The entries have their numbers from the flight recorder.
  void submitted(std::span<const Entry> entries);
  // Of entries that come to it together: with kStarted they are one FusedOp. Those without a request are not this rank's.
  void reached(std::span<const Entry> entries, Stage stage);
  void announcing();
  // A caller waits, for as long as this object lives, for the operation of this number.
  class WaitSpan {
   public:
    WaitSpan(Timeline& timeline, std::uint64_t number);
    ~WaitSpan();
    WaitSpan(const WaitSpan&) = delete;
    WaitSpan& operator=(const WaitSpan&) = delete;

   private:
    Timeline& timeline_;
    const std::uint64_t number_;
    const base::Clock::time_point since_;
  };
  // In a forked child, where the writer does not exist.
  void abandon();

 private:
  void end();
  void note(std::span<TimelineEvent> events);
  void write_until_stopped();

  const TimelineOwner owner_;
  const base::TimeSource time_;
  std::atomic<bool>& on_;
  std::atomic<bool> cycles_{false};
  std::atomic<std::uint32_t> fused_{0};
  std::mutex control_;  // one start or stop at a time
  std::mutex mutex_;    // of what follows
  std::condition_variable wake_;
  std::vector<TimelineEvent> queue_;
  std::uint64_t dropped_ = 0;
  bool stopping_ = false;
  std::unique_ptr<TimelineWriter> writer_;  // used by its thread only
  std::thread thread_;
};

}  // namespace hvdlite::engine
