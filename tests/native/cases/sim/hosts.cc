// Hosts that are lost, stopped or cut off, and heartbeats: who is accused of silence, when, and who is not.
#include "harness.h"
#include "sim/job.h"

namespace hvdlite::sim::hosts_test {
namespace {

const Shape kThreeHosts = {.hosts = {0, 1, 1, 2}};
// HVDLITE_PEER_TIMEOUT, and the longest time between two looks.
constexpr double kTimeout = 10.0, kLooks = 0.1;

// Ranks 1 and 2 are cut off: both sides give up, each for the silence of the others.
TEST(a_host_that_is_cut_off_is_given_up_after_the_timeout) {
  for (const bool waiting : {true, false}) {
    Job job(kThreeHosts, usual());
    Time cut;
    job.begin([&, waiting](Rank& rank) -> Program {
      EXPECT((co_await rank.barrier()).ok());
      co_await rank.compute(1);
      if (rank.number() == 1) {
        cut = job.now();
        job.cut_link(1);
      }
      if (!waiting || rank.number() == 1) co_await rank.compute(30);
      EXPECT((co_await rank.allreduce("x")).code == base::ErrorCode::kPeerLost);
    });
    job.run();
    for (const Rank& rank : job.ranks()) {
      const double seconds = base::seconds_between(cut, rank.failed_at());
      // What came last came up to two seconds before the cut.
      EXPECT_OR(seconds > kTimeout - 2.1 && seconds < kTimeout + kLooks, std::to_string(seconds));
      EXPECT_HAS(rank.failure().message, "has heard nothing for 10 s (HVDLITE_PEER_TIMEOUT)");
      if (rank.number() == 0 || rank.number() == 3) {
        EXPECT_HAS(rank.failure().message, "rank 1 (host h1), rank 2 (host h1)");
      }
    }
    // The first ranks of the three hosts warn before: two of one host, and one of two hosts.
    const std::string log = job.log().text();
    const std::string warning = "nothing has come from the host of ";
    int warnings = 0;
    for (auto at = log.find(warning); at != std::string::npos; at = log.find(warning, at + 1)) {
      ++warnings;
    }
    EXPECT_OR(warnings == 4, log);
    EXPECT_HAS(log,
               warning + "rank 1 (host h1), rank 2 (host h1) for 5 s. If it stays silent for 10 s");
  }
}

TEST(engines_that_have_nothing_to_say_hear_each_other) {
  base::Config config = usual();
  config.peer_timeout = 0.5;
  Job job({.hosts = {0, 0, 1}}, config);
  job.begin([](Rank& rank) -> Program {
    for (int i = 0; i < 3; ++i) {
      EXPECT((co_await rank.allreduce("x")).ok());
      co_await rank.compute(200);
    }
  });
  job.run();
  for (const Rank& rank : job.ranks()) EXPECT(!rank.failed());
}

// It speaks for its host, and so its neighbours there count as lost with it: they are not told, and wait for the stall limit.
TEST(a_stopped_first_rank_of_a_host_is_accused_for_its_host) {
  Job job(kThreeHosts, usual());
  Time stopped;
  job.begin([&](Rank& rank) -> Program {
    EXPECT((co_await rank.barrier()).ok());
    if (rank.number() == 1) {
      stopped = job.now();
      rank.stop(60);
    }
    co_await rank.compute(40);
  });
  job.run();
  EXPECT(!job.rank(2).failed());
  for (const int number : {0, 3}) {
    const Rank& rank = job.rank(number);
    EXPECT_HAS(rank.failure().message, "its first rank is stopped");
    const double seconds = base::seconds_between(stopped, rank.failed_at());
    EXPECT_OR(seconds > kTimeout - 2.1 && seconds < kTimeout + 0.35, std::to_string(seconds));
  }
}

TEST(a_job_that_was_asleep_accuses_nobody) {
  Job job(kThreeHosts, usual());
  job.begin([](Rank& rank) -> Program {
    EXPECT((co_await rank.barrier()).ok());
    for (int i = 0; i < 5; ++i) {
      rank.stop(600);  // all of them: the machines sleep
      co_await rank.compute(1);
      EXPECT((co_await rank.allreduce("x")).ok());
    }
  });
  job.run(10'000);
  EXPECT(job.log().text().find("ERROR") == std::string::npos);
  EXPECT(job.log().text().find("nothing has come") == std::string::npos);
}

TEST(without_a_timeout_silence_means_nothing) {
  base::Config config = usual();
  config.peer_timeout = 0;
  Job job(kThreeHosts, config);
  job.begin([&](Rank& rank) -> Program {
    EXPECT((co_await rank.barrier()).ok());
    if (rank.number() == 1) rank.stop(100);
    co_await rank.compute(100);
    EXPECT((co_await rank.allreduce("x")).ok());
  });
  job.run();
}

TEST(who_has_left_is_not_missed) {
  Job job(kThreeHosts, usual());
  job.begin([&](Rank& rank) -> Program {
    EXPECT((co_await rank.barrier()).ok());
    if (rank.number() == 0 || rank.number() == 3) {
      co_await rank.compute(100);
      EXPECT(!rank.failed());
    }
    co_await rank.leave();
  });
  job.run();
  EXPECT(job.log().text().find("ERROR") == std::string::npos);
}

}  // namespace
}  // namespace hvdlite::sim::hosts_test
