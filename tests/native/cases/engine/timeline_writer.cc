// The file of a timeline. (tests/unit/test_timeline_files.py has its content.)
#include "engine/observe/timeline_writer.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "harness.h"

namespace hvdlite::engine::timeline_writer_test {
namespace {

constexpr std::size_t kRoom = 1 << 14;

std::vector<TimelineEvent> operations(std::size_t count) {
  Request request;
  request.name = "x";
  request.seal();
  const auto shared = std::make_shared<const Request>(std::move(request));
  std::vector<TimelineEvent> events;
  for (std::size_t i = 0; i < count; ++i) {
    TimelineEvent& asked = events.emplace_back();
    asked.kind = TimelineEvent::Kind::kSubmitted;
    asked.request = shared;
    asked.number = i;
    TimelineEvent& ended = events.emplace_back();
    ended.stage = FlightRecorder::Stage::kDone;
    ended.number = i;
  }
  return events;
}

}  // namespace

// One call has the events of many files. The first file that cannot be written ends the trace, although a later one could be.
TEST(a_trace_that_has_ended_makes_no_further_file) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("hvdlite-" + std::to_string(getpid()));
  fs::create_directory(folder);
  const std::string path = folder / "t.json";
  fs::create_symlink("/dev/full", path + ".new");  // can be opened, but each write fails
  {
    TimelineWriter writer(path, kRoom, TimelineOwner{}, base::TimeSource());
    writer.write(operations(1000), 0);
  }
  const bool continued = fs::exists(path + ".old");
  fs::remove_all(folder);
  EXPECT(!continued);
}

}  // namespace hvdlite::engine::timeline_writer_test
