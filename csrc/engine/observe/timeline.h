// A trace of this rank's operations for the viewers of Chrome and Perfetto: what each operation waited for, and when its data
// moved.
// Thread: any. Owns: its queue, its thread, its file. Blocks: start, stop and the destructor, on the disk. Throws: start throws
// Error(InvalidArgument) if the file cannot be made; in that case an earlier trace to another file continues. start throws
// std::system_error if no thread can be started; in that case no trace is written.
//
//   callers, the engine ──► queue (one lock, a few stores) ──► writer thread: pairs of events become spans ──► file
//
// Code that has an event first asks whether a trace is written (the flag `on`). While no trace is written, an event costs the
// load of this flag. No thread that has an event waits for the file: if the queue is full, the timeline drops and counts
// events. After each write the file ends with the closing bracket, so a crash between two writes leaves valid JSON. The size
// is bounded: when the file has half of `max_bytes`, it becomes FILE.old and replaces the earlier FILE.old, and a new file
// begins. A new trace removes the FILE.old of an earlier trace.
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

  // on: a flag that start() sets and stop() clears. The flag must outlive the timeline.
  Timeline(TimelineOwner owner, base::TimeSource time, std::atomic<bool>& on)
      : owner_(owner), time_(time), on_(on) {}
  ~Timeline() { stop(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Begins a file, and completes the earlier one, if there is one. max_bytes: the limit for the file and its FILE.old together.
  // cycles: does each call of announcing() make a mark?
  void start(const std::string& path, std::size_t max_bytes, bool cycles);
  // Ends the trace, if there is one, and completes its file.
  void stop();

  // Call it after FlightRecorder::submitted(), which numbers the entries.
  void submitted(std::span<const Entry> entries);
  // These entries reach a stage together; with kStarted they are one FusedOp, or one send or receive. An entry without a
  // request belongs to no caller of this rank, and makes no event.
  void reached(std::span<const Entry> entries, Stage stage);
  // This rank has taken operations from its queue, and announces them next.
  void announcing();
  // Make this object when the calling thread begins to wait for the operation of this number, and destroy it when the wait
  // ends. Its destructor makes the event.
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

 private:
  void end();
  void note(std::span<TimelineEvent> events);
  void write_until_stopped();

  const TimelineOwner owner_;
  const base::TimeSource time_;
  std::atomic<bool>& on_;
  std::atomic<bool> cycles_{false};
  std::atomic<std::uint32_t> fused_{0};  // the number of the last FusedOp
  std::mutex control_;                   // one start or stop at a time
  std::mutex mutex_;                     // for wake_, queue_, dropped_ and stopping_
  std::condition_variable wake_;
  std::vector<TimelineEvent> queue_;
  std::uint64_t dropped_ = 0;  // events since the last write
  bool stopping_ = false;
  std::string path_;
  std::unique_ptr<TimelineWriter> writer_;  // while thread_ runs, only this thread uses it
  std::thread thread_;
};

}  // namespace hvdlite::engine
