// Engines with little to do: counted by their passes, by what woke them, and by timeouts that found work, which nothing explains
// but a wake-up that was lost and that polling repaired.
#include "harness.h"
#include "sim/job.h"

namespace hvdlite::sim::idling_test {
namespace {

struct Counted {
  std::uint64_t passes = 0, wakeups = 0;
};

// What a rank did in so many seconds.
std::vector<Counted> count(Job& job, double seconds) {
  std::vector<Counted> counted;
  for (const Rank& rank : job.ranks()) counted.push_back({rank.passes(), rank.wakeups()});
  job.run_for(seconds);
  for (std::size_t i = 0; i < counted.size(); ++i) {
    const Rank& rank = job.rank(static_cast<int>(i));
    counted[i] = {rank.passes() - counted[i].passes, rank.wakeups() - counted[i].wakeups};
  }
  return counted;
}

Program work_and_rest(Rank& rank) {
  for (int step = 0; step < 3; ++step) {
    EXPECT((co_await rank.allreduce("x", 1000)).ok());
  }
  co_await rank.compute(1000);
  EXPECT((co_await rank.allreduce("x", 1000)).ok());
}

TEST(an_idle_engine_looks_four_times_a_second_and_nobody_wakes_it) {
  for (const bool memory : {true, false}) {
    Job job({.hosts = {0, 0, 0}, .shared_memory = memory}, usual());
    job.begin(work_and_rest);
    job.run_for(1);
    for (const Counted& each : count(job, 100)) {
      EXPECT_OR(each.passes <= 401, std::to_string(each.passes));
      EXPECT(each.wakeups == 0);
    }
    job.run();
  }
}

// Nobody can ring there, so it looks more often, but the longer nothing has happened the less.
TEST(across_hosts_an_idle_engine_looks_twenty_times_a_second) {
  Job job({.hosts = {0, 0, 1}}, usual());
  job.begin(work_and_rest);
  job.run_for(2);
  const auto counted = count(job, 100);
  EXPECT_OR(counted[1].passes <= 2100, std::to_string(counted[1].passes));
  // After a heartbeat from another host, every two seconds, it begins to look less often anew.
  for (const std::size_t leader : {0, 2}) {
    EXPECT_OR(counted[leader].passes <= 50 * 110, std::to_string(counted[leader].passes));
  }
  job.run();
}

TEST(who_waits_for_a_slow_rank_looks_a_hundred_times_a_second) {
  for (const bool memory : {true, false}) {
    Job job({.hosts = {0, 0, 0}, .shared_memory = memory}, usual());
    job.begin([](Rank& rank) -> Program {
      if (rank.number() == 2) co_await rank.compute(50);
      EXPECT((co_await rank.allreduce("x", 1000)).ok());
    });
    job.run_for(2);
    const auto counted = count(job, 40);
    EXPECT_OR(counted[0].passes <= 4050, std::to_string(counted[0].passes));
    EXPECT_OR(counted[2].passes <= 165, std::to_string(counted[2].passes));
    EXPECT(counted[0].wakeups <= 1);  // a report of being blocked, and its answer
    job.run();
  }
}

TEST(signs_of_life_between_idle_hosts_are_few) {
  Job job({.hosts = {0, 0, 1}}, usual());
  job.begin(work_and_rest);
  job.run_for(2);
  const std::int64_t before = job.rank(0).shared().counters.control_messages_sent;
  job.run_for(100);
  const std::int64_t sent = job.rank(0).shared().counters.control_messages_sent - before;
  EXPECT_OR(sent >= 45 && sent <= 51, std::to_string(sent));          // every two seconds
  EXPECT(job.rank(1).shared().counters.control_messages_sent <= 10);  // rank 0 speaks for its host
}

// On one host whoever has news rings, so no timeout of a sleep ever finds any.
TEST(no_wake_up_is_lost) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    for (const bool memory : {true, false}) {
      Shape shape = one_host(2 + static_cast<int>(seed % 3));
      shape.shared_memory = memory;
      shape.seed = seed;
      Job job(shape, usual());
      job.begin([seed](Rank& rank) -> Program {
        const auto number = static_cast<std::uint64_t>(rank.number());
        for (std::uint64_t step = 0; step < 6; ++step) {
          // One rank after the other is late, by so much that the others sleep.
          if ((step + seed) % static_cast<std::uint64_t>(rank.size()) == number) {
            co_await rank.compute(0.3 * static_cast<double>(1 + seed % 3));
          }
          std::vector<Operation*> mine;
          for (const std::int64_t elements : {1, 5000, 40'000}) {
            mine.push_back(&rank.start("x" + std::to_string(elements), elements));
            if ((seed + number) % 2 == 0) co_await rank.compute(0.01);
          }
          const float sum = static_cast<float>(rank.size() * (rank.size() + 1) / 2);
          for (Operation* each : mine) {
            EXPECT((co_await rank.wait(*each)).ok());
            EXPECT(each->output.back() == sum);
          }
          if (step % 3 == 2) EXPECT((co_await rank.barrier()).ok());
        }
        co_await rank.leave();
      });
      job.run();
      for (const Rank& rank : job.ranks()) {
        EXPECT_OR(rank.timeouts_that_found_work() == 0,
                  "seed " + std::to_string(seed) + (memory ? " in memory" : " by messages") +
                      ", rank " + std::to_string(rank.number()) + ": " +
                      std::to_string(rank.timeouts_that_found_work()) + " of " +
                      std::to_string(rank.timeouts()));
        EXPECT(rank.wakeups() > 0);
      }
    }
  }
}

}  // namespace
}  // namespace hvdlite::sim::idling_test
