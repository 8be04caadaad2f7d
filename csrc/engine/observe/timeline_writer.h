// The file of a timeline: turns events into spans, and spans into JSON of Chrome's trace event format.
// Thread: one at a time. Owns: the file. Blocks: on the disk. Throws: Error(InvalidArgument) if the file cannot be begun. If
// a later write fails, for example because the disk is full, the trace ends. The file keeps the earlier events, and stays
// valid.
//
// In the words of Chrome's format, a rank is a process. A tensor is a thread of that process, and has the spans of
// docs/timeline.md. A caller that waits is a thread, too. The code calls each such thread a track.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/time_source.h"
#include "engine/model/request.h"
#include "engine/observe/flight_recorder.h"

namespace hvdlite::engine {

// The rank that writes the trace.
struct TimelineOwner {
  int rank = 0;
  int size = 1;
};

struct TimelineEvent {
  enum class Kind : std::uint8_t { kSubmitted, kReached, kCycle, kWait };
  Kind kind = Kind::kReached;
  FlightRecorder::Stage stage = FlightRecorder::Stage::kSubmitted;
  std::int32_t thread = 0;        // of a wait: the caller's
  std::uint32_t fused = 0;        // of kStarted: number of the FusedOp
  std::uint64_t number = 0;       // of the operation
  base::Clock::time_point time;   // of a wait: its end
  base::Clock::time_point since;  // of a wait: its begin
  RequestPtr request;             // of kSubmitted
};

class TimelineWriter {
 public:
  TimelineWriter(std::string path, std::size_t max_bytes, TimelineOwner owner,
                 base::TimeSource time);
  ~TimelineWriter();
  TimelineWriter(const TimelineWriter&) = delete;
  TimelineWriter& operator=(const TimelineWriter&) = delete;

  // Does nothing after a write has failed. dropped: the number of events that the timeline has dropped since the last call. If
  // it is not 0, operations that have not ended get no further spans.
  void write(const std::vector<TimelineEvent>& events, std::uint64_t dropped);

 private:
  // An operation that has not ended. since: when it reached `stage`. fused: the number of its FusedOp; 0: it has not started.
  struct Open {
    RequestPtr request;
    FlightRecorder::Stage stage = FlightRecorder::Stage::kSubmitted;
    base::Clock::time_point since;
    std::int32_t track = 0;
    std::uint32_t fused = 0;
  };

  void open_file(const std::string& path);
  void header();
  void rotate();
  int flush();
  void name_track(std::int32_t track, const std::string& name);
  void follow(const TimelineEvent& event);
  void reach(Open& open, const TimelineEvent& event);
  void span(const std::string& name, std::int32_t track, base::Clock::time_point from,
            base::Clock::time_point to, const std::string& arguments);
  void mark(const std::string& name, base::Clock::time_point time, const std::string& arguments);
  void add(const std::string& name, char phase, std::int32_t track, const std::string& times,
           const std::string& arguments);

  const std::string path_;
  const std::size_t max_bytes_;
  const TimelineOwner owner_;
  const base::TimeSource time_;
  int file_ = -1;
  std::size_t written_ = 0;  // length of the file without its closing bracket
  std::string text_;         // not written yet
  std::unordered_map<std::uint64_t, Open> open_;
  std::map<std::string, std::int32_t> tracks_;    // of tensors, by name
  std::map<std::int32_t, std::int32_t> callers_;  // tracks of threads that wait
  std::unordered_set<std::int32_t> named_;        // tracks that have a name in the present file
  std::uint64_t dropped_ = 0;
};

}  // namespace hvdlite::engine
