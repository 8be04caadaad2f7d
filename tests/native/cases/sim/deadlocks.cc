// Ranks that wait for each other for ever: found within two seconds of virtual time, with who waits for what.
#include <algorithm>

#include "harness.h"
#include "sim/job.h"

namespace hvdlite::sim::deadlocks_test {
namespace {

constexpr double kPromised = 2.0;

// What a rank submits, in order: then it waits for all of it.
using Plan = std::vector<std::vector<std::string>>;

struct Outcome {
  base::Status status;
  double seconds = 0;
};

// Of each operation of each rank.
std::vector<std::vector<Outcome>> carry_out(const Shape& shape, const Plan& plan) {
  Job job(shape, usual());
  std::vector<std::vector<Outcome>> outcomes(plan.size());
  job.begin([&](Rank& rank) -> Program {
    EXPECT((co_await rank.barrier()).ok());
    const Time begun = job.now();
    const auto number = static_cast<std::size_t>(rank.number());
    std::vector<Operation*> mine;
    for (const std::string& name : plan[number]) mine.push_back(&rank.start(name));
    for (Operation* each : mine) {
      const base::Status status = co_await rank.wait(*each);
      outcomes[number].push_back({status, job.seconds_since(begun)});
    }
    EXPECT((co_await rank.barrier("after")).ok());  // the engine goes on
  });
  job.run(60);
  return outcomes;
}

void expect_deadlock(const Outcome& outcome, const std::vector<std::string>& parts) {
  EXPECT(outcome.status.code == base::ErrorCode::kTimeout);
  EXPECT_OR(outcome.seconds <= kPromised, std::to_string(outcome.seconds));
  for (const std::string& part : parts) EXPECT_HAS(outcome.status.message, part);
}

const std::vector<Shape> kShapes = {one_host(3),
                                    {.hosts = {0, 0, 0}, .shared_memory = false},
                                    {.hosts = {0, 0, 1}},
                                    {.hosts = {0, 1, 2}},
                                    {.hosts = {0, 1, 2}, .ledger_copies = false}};

TEST(different_names_are_found_and_told_with_who_waits_for_what) {
  for (const Shape& shape : kShapes) {
    const auto outcomes = carry_out(shape, {{"a"}, {"b"}, {"a"}});
    for (const auto& of_rank : outcomes) {
      expect_deadlock(of_rank[0], {"rank 0", "rank 1", "rank 2", "'a'", "'b'"});
    }
    EXPECT(outcomes[0][0].status.message == outcomes[2][0].status.message);
  }
}

TEST(a_tensor_that_one_rank_lacks_is_found_and_all_else_is_right) {
  for (const Shape& shape : kShapes) {
    const auto outcomes =
        carry_out(shape, {{"a", "lacks", "b"}, {"b", "a", "other"}, {"lacks", "b", "a"}});
    for (std::size_t number = 0; number < 3; ++number) {
      for (const Outcome& each : outcomes[number]) {
        if (!each.status.ok()) expect_deadlock(each, {"rank 1", "'lacks'", "'other'"});
      }
      EXPECT(std::ranges::count_if(outcomes[number],
                                   [](const Outcome& each) { return !each.status.ok(); }) == 1);
    }
  }
}

TEST(who_waits_for_a_rank_that_computes_waits_as_long_as_that_takes) {
  for (const Shape& shape : kShapes) {
    Job job(shape, usual());
    job.begin([&](Rank& rank) -> Program {
      if (rank.number() == 2) co_await rank.compute(50);
      EXPECT((co_await rank.allreduce(rank.number() == 2 ? "b" : "a")).ok() == (rank.number() < 0));
    });
    // Ranks 0 and 1 wait for rank 2, which computes: nobody is told anything before it waits, too.
    job.run_for(49);
    for (const Rank& rank : job.ranks()) {
      for (const Operation& each : rank.operations()) EXPECT(!each.ended());
    }
    const Time came = job.now() + base::from_seconds(1);
    job.run(60);
    EXPECT(base::seconds_between(came, job.now()) <= kPromised);
  }
}

TEST(two_sets_in_a_ring_are_found) {
  for (const Shape& shape : kShapes) {
    Job job(shape, usual());
    job.begin([&](Rank& rank) -> Program {
      const std::vector<std::int64_t> low = {0, 1}, high = {1, 2};
      EXPECT((co_await rank.add_set(low)).ok());
      EXPECT((co_await rank.add_set(high)).ok());
      EXPECT((co_await rank.barrier()).ok());
      const Time begun = job.now();
      // 0 waits for 1 in the first set, 1 for 2 in the second, 2 for both in the set of all.
      const base::Status status =
          co_await rank.allreduce("x" + std::to_string(rank.number()), 4, (rank.number() + 1) % 3);
      EXPECT(status.code == base::ErrorCode::kTimeout);
      EXPECT(job.seconds_since(begun) <= kPromised);
      for (const char* part : {"rank 0", "rank 1", "rank 2", "'x0'", "'x1'", "'x2'"}) {
        EXPECT_HAS(status.message, part);
      }
    });
    job.run(60);
  }
}

TEST(those_who_wait_for_nobody_in_it_are_left_alone) {
  for (const bool memory : {true, false}) {
    Job job({.hosts = {0, 0, 0, 0}, .shared_memory = memory}, usual());
    job.begin([&](Rank& rank) -> Program {
      const std::vector<std::int64_t> low = {0, 1}, high = {2, 3};
      EXPECT((co_await rank.add_set(low)).ok());
      EXPECT((co_await rank.add_set(high)).ok());
      if (rank.number() < 2) {
        const base::Status status =
            co_await rank.allreduce("x" + std::to_string(rank.number()), 4, 1);
        EXPECT(status.code == base::ErrorCode::kTimeout);
        EXPECT(status.message.find("rank 2") == std::string::npos);
      } else {
        if (rank.number() == 3) co_await rank.compute(30);
        EXPECT((co_await rank.allreduce("y", 4, 2)).ok());
      }
    });
    job.run(60);
  }
}

// The machine gives a rank no time from this moment or that: what it has announced comes late to whoever carries out the verdict.
TEST(a_rank_that_is_slow_at_any_moment_is_told_as_well) {
  for (const Shape& shape : kShapes) {
    std::uint64_t moments = 1;
    for (std::uint64_t moment = 0; moment < moments; ++moment) {
      Job job(shape, usual());
      job.begin([&](Rank& rank) -> Program {
        EXPECT((co_await rank.barrier()).ok());
        const base::Status status = co_await rank.allreduce("x" + std::to_string(rank.number()));
        EXPECT(status.code == base::ErrorCode::kTimeout);
        EXPECT((co_await rank.barrier("after")).ok());
      });
      job.at_turn(moment, [&] { job.rank(static_cast<int>(moment % 3)).stop(0.5); });
      job.run(60);
      if (moment == 0) moments = job.turns();
    }
  }
}

TEST(switched_off_they_wait) {
  base::Config config = usual();
  config.deadlock_timeout = 0;
  Job job(one_host(2), config);
  job.begin(
      [](Rank& rank) -> Program { co_await rank.allreduce("x" + std::to_string(rank.number())); });
  job.run_for(50);
  for (const Rank& rank : job.ranks()) EXPECT(!rank.operations().back().ended());
}

}  // namespace
}  // namespace hvdlite::sim::deadlocks_test
