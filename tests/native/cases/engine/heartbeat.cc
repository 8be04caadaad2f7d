// Who is accused of silence, and who is not, by a clock of its own: a rank with the other hosts 1 and 2 and a timeout of 10 s.
#include "engine/membership/heartbeat.h"

#include <vector>

#include "harness.h"

namespace hvdlite::engine::heartbeat_test {
namespace {

using Hosts = std::vector<int>;

const Hosts kNobody, kOne = {1}, kTwo = {2}, kBoth = {1, 2};

struct Leader {
  static base::Clock::time_point time(long milliseconds) {
    return base::Clock::time_point() + base::microseconds(1000 * milliseconds);
  }
  Heartbeat::Actions look(long milliseconds) { return heartbeat.tick(time(milliseconds)); }
  void hear(int host, long milliseconds) { heartbeat.heard(host, time(milliseconds)); }

  Heartbeat heartbeat{
      {1, 2}, base::microseconds(10'000'000), base::microseconds(10'000'000), time(0)};
};

TEST(signs_of_life_are_due_at_intervals_to_everybody) {
  Leader leader;
  for (long second = 1; second <= 7; ++second) {
    if (second == 3 || second == 5) {
      for (const int host : {1, 2}) leader.hear(host, second == 3 ? 2500 : 5000);
    }
    const Heartbeat::Actions actions = leader.look(1000 * second);
    EXPECT(actions.send == (second % 2 == 0 ? kBoth : kNobody));
    EXPECT(actions.silent.empty());
  }
}

TEST(a_host_is_silent_only_after_the_timeout) {
  Leader leader;
  for (long second = 1; second <= 15; ++second) {
    leader.hear(1, 1000 * second);
    if (second == 4) leader.hear(2, 3500);
    EXPECT(leader.look(1000 * second).silent == (second >= 14 ? kTwo : kNobody));
  }
}

TEST(a_host_is_named_once_in_a_silence_at_half_of_the_timeout) {
  Leader leader;
  for (long second = 1; second <= 13; ++second) {
    leader.hear(1, 1000 * second);
    if (second == 7) leader.hear(2, 6500);
    EXPECT(leader.look(1000 * second).quiet == (second == 6 || second == 12 ? kTwo : kNobody));
  }
}

TEST(who_has_left_is_not_missed) {
  Leader leader;
  for (long second = 1; second <= 20; ++second) {
    leader.hear(1, 1000 * second);
    if (second == 3) leader.heartbeat.forget(2);
    const Heartbeat::Actions actions = leader.look(1000 * second);
    EXPECT(actions.silent.empty());
    EXPECT(actions.send == (second % 2 != 0 ? kNobody : second < 3 ? kBoth : kOne));
  }
}

// Stopped, or asleep: what the others sent meanwhile is read after the first look.
TEST(who_was_away_itself_accuses_nobody_of_that_time) {
  Leader leader;
  for (const long look : {1000, 2000, 600'000, 600'020}) EXPECT(leader.look(look).silent.empty());
  leader.hear(1, 603'000);
  for (const long look : {605'000, 609'999}) EXPECT(leader.look(look).silent.empty());
  EXPECT(leader.look(610'021).silent == kTwo);
}

}  // namespace
}  // namespace hvdlite::engine::heartbeat_test
