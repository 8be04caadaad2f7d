// The counters of time by a clock that is stepped (what whole engines count is in sim/usage.cc).
#include "engine/observe/usage.h"

#include "harness.h"

namespace hvdlite::engine::usage_test {
namespace {

using std::chrono::seconds;

TEST(each_blocked_thread_counts) {
  base::ManualTime time;
  Usage usage(2, base::TimeSource(time));
  const auto begun = time.now();
  time.step(seconds(10));
  for (int thread = 0; thread < 3; ++thread) {
    usage.blocked(begun + seconds(thread), time.now(), usage.moving(begun));
  }
  EXPECT(usage.numbers().exposed_ns == 27'000'000'000);
  EXPECT(usage.numbers().exposed_moving_ns == 0);
  EXPECT(usage.numbers().time_ns == 10'000'000'000);
}

}  // namespace
}  // namespace hvdlite::engine::usage_test
