// The questions of the engine to the watchdog, and the watchdog's answers. The watchdog is a Python thread
// (hvdlite/watchdog.py) that can say where this rank's program is. The engine cannot, because it does not take the GIL.
// Thread: the holder of the progress token (the thread that drives the engine, engine.h) calls ask and take; the watchdog
// calls wait and tell; any thread calls close and uses StallExemption. Owns: the answer until take(). Blocks: wait(), until a
// question or close(). Throws: nothing.
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
  // Asks where the program is, and drops an earlier answer. Returns false, and asks nothing, before the watchdog's first wait()
  // and after close().
  bool ask();
  // The answer, if it has come and was not taken yet.
  std::optional<std::string> take();

  // Waits for a question. Returns true if there is one, which the watchdog answers by tell(), and false after close().
  bool wait();
  void tell(std::string text);
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool attended_ = false;  // a watchdog has called wait()
  bool asked_ = false;
  bool closed_ = false;
  std::optional<std::string> answer_;
};

// The time for which the other ranks wait for this rank without warning or giving up (hvdlite.stall_limit).
class StallExemption {
 public:
  explicit StallExemption(base::TimeSource time) : time_(time) {}
  // The exemption lasts for this many seconds after this call; 0: it ends at once.
  void set(double seconds) {
    until_.store(time_.now() + base::from_seconds(seconds), std::memory_order_relaxed);
  }
  // Seconds since the end of the last exemption; negative while it lasts; infinity if there was none.
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
