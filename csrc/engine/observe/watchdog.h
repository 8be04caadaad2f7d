// Where the engine meets the thread that can tell where this rank's program is: the binding's, since the engine takes no GIL.
// Thread: ask and take by the holder of the progress token, wait and tell by one thread of the binding, close and excuse by any.
// Owns: the answer until it is taken. Blocks: wait, until somebody asks or all is over. Throws: nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <string>

#include "base/time_source.h"

namespace hvdlite::engine {

class Watchdog {
 public:
  // True if there is somebody to tell.
  bool ask();
  std::optional<std::string> take();

  // True: tell where this rank is. False: it is over.
  bool wait();
  void tell(std::string text);
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool attended_ = false;  // a thread has come to wait
  bool asked_ = false;
  bool closed_ = false;
  std::optional<std::string> answer_;
};

// For how long this rank asked not to be waited for impatiently (hvdlite.stall_limit).
class StallExemption {
 public:
  explicit StallExemption(base::TimeSource time) : time_(time) {}
  // From now on; 0: no longer.
  void set(double seconds) {
    until_.store(time_.now() + base::from_seconds(seconds), std::memory_order_relaxed);
  }
  // Seconds since it ended, negative while it lasts, infinity if there was none.
  double over_for(base::Clock::time_point now) const {
    const auto until = until_.load(std::memory_order_relaxed);
    if (until == base::Clock::time_point()) return std::numeric_limits<double>::infinity();
    return base::seconds_between(until, now);
  }

 private:
  const base::TimeSource time_;
  std::atomic<base::Clock::time_point> until_{base::Clock::time_point()};
};

}  // namespace hvdlite::engine
