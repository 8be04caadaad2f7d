// The last N operations of this rank and how far each came, printed when something fails.
// Thread: any; a lock of its own, held for a few stores. Owns: the records. Blocks: no. Throws: nothing.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/thread.h"
#include "engine/request.h"

namespace hvdlite::engine {

class FlightRecorder {
 public:
  explicit FlightRecorder(std::size_t capacity);

  enum class Stage : std::uint8_t { kSubmitted, kAnnounced, kAgreed, kStarted, kDone, kFailed };
  // The number under which the operation is recorded; also its number in log lines.
  std::uint64_t submitted(RequestPtr request);
  void reached(std::uint64_t number, Stage stage);
  // Lines of text on the last `most` operations, oldest first.
  std::string text(std::size_t most) const;

 private:
  struct Record {
    std::uint64_t number = 0;
    RequestPtr request;
    Stage stage = Stage::kSubmitted;
    base::Clock::time_point submitted;
    base::Clock::time_point last;
  };
  mutable std::mutex mutex_;
  std::size_t capacity_;
  std::uint64_t next_ = 1;
  std::vector<Record> ring_;
};

}  // namespace hvdlite::engine
