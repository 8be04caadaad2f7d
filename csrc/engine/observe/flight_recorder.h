// Records the last N operations of this rank and the stage that each reached. The engine logs them when this rank fails.
// Thread: any. Owns: the records. Blocks: report() only, on the disk. Throws: std::bad_alloc.
//
// Record n lies in place n modulo N. A submission takes a lock, because several fields change together. A new stage takes no
// lock: number and stage are one word, and the word changes only if it still holds the operation's number. If more
// than N operations are in flight, new records overwrite those of the oldest operations. A new stage of an operation without a
// record costs almost nothing. Times come from a coarse clock with a resolution of some milliseconds.
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
    std::size_t capacity = 0;  // N; 0: records nothing
    std::string folder;        // for the files of report(); empty: no files
    int rank = 0;
  };
  FlightRecorder(Settings settings, base::TimeSource time);

  enum class Stage : std::uint8_t { kSubmitted, kAnnounced, kAgreed, kStarted, kDone, kFailed };
  // Numbers the entries (Completion::record), and records them. Log lines show the numbers.
  void submitted(std::span<const Entry> entries);
  void reached(std::uint64_t number, Stage stage);
  // The last number given to an operation; 0: none.
  std::uint64_t newest() const {
    const std::lock_guard lock(mutex_);
    return next_ - 1;
  }
  // One line for each recorded operation, the oldest first.
  std::string text() const { return text(kEverything, 0); }
  // The text to log when this rank fails: one line for each recorded operation that has not ended; if there are none, one line
  // for each of the last `ended` operations. If that text has some of the recorded operations, but not all, and there is a
  // folder, report() writes all recorded operations to a new file in the folder. In that case one more line names the file, or
  // says why it could not be written.
  std::string report(std::size_t ended) const;

 private:
  static constexpr bool kEverything = false, kUnended = true;
  struct Record {
    std::atomic<std::uint64_t> word{0};  // 8 * number + stage
    // When the operation reached its present stage.
    std::atomic<base::Clock::time_point> last{base::Clock::time_point()};
    base::Clock::time_point submitted;
    RequestPtr request;
  };
  // skipped: the number of oldest operations to leave out.
  std::string text(bool unended_only, std::uint64_t skipped) const;
  // The text of report() without the line about the file.
  std::string excerpt(std::size_t ended) const;

  const base::TimeSource time_;
  mutable std::mutex mutex_;
  const std::size_t capacity_;
  const std::string file_prefix_;  // empty: no files
  std::uint64_t next_ = 1;
  const std::unique_ptr<Record[]> ring_;
};

}  // namespace hvdlite::engine
