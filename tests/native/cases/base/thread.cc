// Seconds and pauses as whole numbers: of any length that a caller may ask for.
#include "base/thread.h"

#include <limits>

#include "harness.h"

namespace hvdlite::base::thread_test {
namespace {

TEST(seconds_without_end_are_a_time_that_can_be_added_to_now) {
  constexpr Clock::time_point kNow{std::chrono::hours(24 * 365 * 50)};
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  for (const double seconds : {kInfinite, 1e300, 1e13, 1e10}) {
    EXPECT(from_seconds(seconds) > std::chrono::hours(24 * 365));
    EXPECT(kNow + from_seconds(seconds) > kNow);
    EXPECT(kNow + from_seconds(-seconds) < kNow);
  }
  EXPECT(from_seconds(1.5) == std::chrono::milliseconds(1500));
  EXPECT(from_seconds(-1.5) == -std::chrono::milliseconds(1500));
}

TEST(a_long_time_has_many_pauses) {
  const int few = spin_pauses_in(microseconds(0));
  EXPECT(few == 0);
  EXPECT(spin_pauses_in(std::chrono::hours(24 * 365)) == std::numeric_limits<int>::max());
}

}  // namespace
}  // namespace hvdlite::base::thread_test
