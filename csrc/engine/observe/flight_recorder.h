// The last N operations of this rank and how far each came, printed when something fails.
// Thread: any. Owns: the records. Blocks: no. Throws: nothing.
//
// Record n lies in place n modulo N. Submitting takes a lock, for what has to change together; reaching a stage takes none:
// number and stage are one word, which only changes if it still holds the operation's number. So a stage costs nothing if its
// record is overwritten already, as most are while thousands of operations are in flight. Times are those of a coarse clock,
// which is some milliseconds off.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/time_source.h"
#include "engine/model/entry.h"

namespace hvdlite::engine {

class FlightRecorder {
 public:
  struct Settings {
    std::size_t capacity = 0;
    std::string folder;  // for the files of `report`; empty: none
    int rank = 0;
  };
  FlightRecorder(Settings settings, base::TimeSource time);

  enum class Stage : std::uint8_t { kSubmitted, kAnnounced, kAgreed, kStarted, kDone, kFailed };
  // Numbers the entries: their completions' `record`, also their number in log lines.
  void submitted(std::span<const Entry> entries);
  void reached(std::uint64_t number, Stage stage);
  // The number given out last; 0: none.
  std::uint64_t newest() const {
    const std::lock_guard lock(mutex_);
    return next_ - 1;
  }
  // A line of text for each operation that is remembered, oldest first.
  std::string text() const { return text(kEverything, 0); }
  // What is printed when something fails: a line for each operation that has not ended; where there are none, for each of the
  // last `ended` ones. Where that leaves some out, a file has them all, and the last line names it.
  std::string report(std::size_t ended) const;

 private:
  static constexpr bool kEverything = false, kUnended = true;
  struct Record {
    std::atomic<std::uint64_t> word{0};  // 8 * number + stage
    std::atomic<base::Clock::time_point> last{base::Clock::time_point()};
    base::Clock::time_point submitted;
    RequestPtr request;
  };
  // skipped: the first so many of them are left out.
  std::string text(bool unended_only, std::uint64_t skipped) const;

  std::string in_flight(std::size_t ended) const;

  const base::TimeSource time_;
  mutable std::mutex mutex_;
  const std::size_t capacity_;
  const std::string file_prefix_;  // empty: no files
  std::uint64_t next_ = 1;
  const std::unique_ptr<Record[]> ring_;
};

}  // namespace hvdlite::engine
