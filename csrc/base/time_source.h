// Where an engine reads the time: from the machine's clock, or from one that a test steps.
// Thread: any. Owns: nothing; a manual clock must outlive all that read it. Blocks: no. Throws: nothing.
//
// Everything by which the engine decides (batches, stalls, signs of life, deadlocks) or that it reports (counters, records) reads
// this one. What sleeps in the kernel or polls a device beside the engine's passes measures the machine, and reads Clock.
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
  // Not the epoch: that time means "never yet" in places.
  std::atomic<Clock::time_point> now_{Clock::time_point() + std::chrono::hours(1)};
};

class TimeSource {
 public:
  TimeSource() = default;  // the machine's
  explicit TimeSource(const ManualTime& manual) : manual_(&manual) {}

  Clock::time_point now() const { return manual_ == nullptr ? Clock::now() : manual_->now(); }
  // To within a few milliseconds, for a quarter of the price.
  Clock::time_point coarse_now() const {
    return manual_ == nullptr ? base::coarse_now() : manual_->now();
  }

 private:
  const ManualTime* manual_ = nullptr;
};

}  // namespace hvdlite::base
