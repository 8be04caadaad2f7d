// The clock of an engine: the machine's clock, or one that a test steps.
// Thread: any. Owns: nothing; a manual clock must outlive all that read it. Blocks: no. Throws: nothing.
//
// All code that decides by time (batches, stalls, heartbeats, deadlocks) or reports times (counters, records) reads this
// clock. Code that sleeps in the kernel, or that polls a device outside of the engine's passes, reads the machine's Clock.
#pragma once

#include <atomic>

#include "base/thread.h"

namespace hvdlite::base {

// Stands still unless it is stepped.
class ManualTime {
 public:
  Clock::time_point now() const { return now_.load(std::memory_order_relaxed); }
  void step(Clock::duration by) {
    now_.store(now_.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }

 private:
  // Not the epoch, because some code uses the epoch for "never".
  std::atomic<Clock::time_point> now_{Clock::time_point() + std::chrono::hours(1)};
};

class TimeSource {
 public:
  TimeSource() = default;  // the machine's
  explicit TimeSource(const ManualTime& manual) : manual_(&manual) {}

  Clock::time_point now() const { return manual_ == nullptr ? Clock::now() : manual_->now(); }
  // The time of now() with an error of a few milliseconds. A call takes a quarter of the time of now().
  Clock::time_point coarse_now() const {
    return manual_ == nullptr ? base::coarse_now() : manual_->now();
  }

 private:
  const ManualTime* manual_ = nullptr;
};

}  // namespace hvdlite::base
