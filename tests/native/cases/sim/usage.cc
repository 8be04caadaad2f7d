// What operations cost, as the engine counts it, to the microsecond: times in each stage, what callers waited, who came last.
#include "harness.h"
#include "sim/job.h"

namespace hvdlite::sim::usage_test {
namespace {

constexpr int kLate = 1;  // the rank that comes late where one does
constexpr double kDelay = 0.2;
// Seconds between what happens and the pass that counts it.
constexpr double kPasses = 0.001;

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

bool about(std::int64_t nanoseconds, double expected, double tolerance) {
  return std::abs(seconds(nanoseconds) - expected) <= tolerance;
}

std::string numbers_of(const engine::Usage::Numbers& numbers) {
  return "negotiating " + std::to_string(seconds(numbers.negotiating_ns)) + ", waiting " +
         std::to_string(seconds(numbers.waiting_ns)) + ", moving " +
         std::to_string(seconds(numbers.moving_ns)) + ", exposed " +
         std::to_string(seconds(numbers.exposed_ns));
}

TEST(a_late_rank_is_waited_for_and_named) {
  constexpr int kSteps = 5;
  for (const int size : {2, 3, 4}) {
    for (const bool memory : {true, false}) {
      for (const std::int64_t elements : {1, 20'000}) {
        Shape shape = one_host(size);
        shape.shared_memory = memory;
        Job job(shape, usual());
        job.begin([&](Rank& rank) -> Program {
          EXPECT((co_await rank.barrier()).ok());
          for (int step = 0; step < kSteps; ++step) {
            if (rank.number() == kLate) co_await rank.compute(kDelay);
            EXPECT((co_await rank.allreduce("x", elements)).ok());
          }
        });
        job.run();
        for (Rank& rank : job.ranks()) {
          const auto numbers = rank.shared().usage.numbers();
          const auto lateness = rank.shared().usage.lateness();
          const double waited = rank.number() == kLate ? 0 : kSteps * kDelay;
          const std::string why = numbers_of(numbers);
          EXPECT_OR(about(numbers.waiting_ns, waited, kSteps * kPasses), why);
          EXPECT_OR(about(numbers.exposed_ns, waited, 2 * kSteps * kPasses), why);
          EXPECT_OR(seconds(numbers.moving_ns) < kSteps * kPasses, why);  // waiting is not moving
          EXPECT_OR(numbers.waiting_ns <= numbers.negotiating_ns, why);
          EXPECT_OR(numbers.exposed_moving_ns <= numbers.exposed_ns, why);
          EXPECT(about(numbers.time_ns, kSteps * kDelay, 0.02));
          std::int64_t operations = 0, charged = 0;
          for (const std::int64_t each : lateness.operations) operations += each;
          for (const std::int64_t each : lateness.nanoseconds) charged += each;
          EXPECT(operations == kSteps + 1);  // each has one last rank; the barrier was one
          EXPECT(lateness.operations[kLate] >= kSteps);
          EXPECT(charged == numbers.waiting_ns);  // every moment is charged to one rank
          EXPECT_OR(about(lateness.nanoseconds[kLate], waited, kSteps * kPasses), why);
        }
      }
    }
  }
}

TEST(operations_that_overlap_count_once) {
  for (const bool memory : {true, false}) {
    Job job({.hosts = {0, 0}, .shared_memory = memory}, usual());
    job.begin([](Rank& rank) -> Program {
      EXPECT((co_await rank.barrier()).ok());
      if (rank.number() == kLate) co_await rank.compute(kDelay);
      std::vector<Operation*> mine;
      for (int i = 0; i < 30; ++i) mine.push_back(&rank.start("x" + std::to_string(i), 3000));
      for (Operation* each : mine) EXPECT((co_await rank.wait(*each)).ok());
    });
    job.run();
    const auto numbers = job.rank(0).shared().usage.numbers();
    EXPECT_OR(about(numbers.negotiating_ns, kDelay, 2 * kPasses), numbers_of(numbers));
    EXPECT_OR(about(numbers.waiting_ns, kDelay, 2 * kPasses), numbers_of(numbers));
    EXPECT_OR(about(numbers.exposed_ns, kDelay, 0.01), numbers_of(numbers));
    EXPECT(job.rank(0).shared().counters.completed == 31);
  }
}

TEST(what_the_program_does_not_wait_for_is_not_exposed) {
  for (const bool memory : {true, false}) {
    Job job({.hosts = {0, 0}, .shared_memory = memory}, usual());
    job.begin([](Rank& rank) -> Program {
      if (rank.number() == kLate) co_await rank.compute(kDelay);
      // So large that its data move in several passes. In one pass virtual time stands still.
      Operation& operation = rank.start("x", 1'000'000);
      co_await rank.until([&] { return operation.ended(); });
      EXPECT((co_await rank.wait(operation)).ok());
    });
    job.run();
    EXPECT(about(job.rank(0).shared().usage.numbers().waiting_ns, kDelay, 2 * kPasses));
    for (Rank& rank : job.ranks()) {
      const auto numbers = rank.shared().usage.numbers();
      EXPECT_OR(numbers.moving_ns > 0 && numbers.exposed_ns == 0, numbers_of(numbers));
    }
  }
}

// A thread that waits for another rank's data is exposed to the moving, too.
TEST(what_is_waited_for_while_data_move_is_exposed_moving) {
  Job job({.hosts = {0, 1}}, usual());
  job.begin([](Rank& rank) -> Program {
    Operation& operation = rank.start("x", 1'000'000);
    if (rank.number() == kLate) {
      const engine::SharedState& shared = rank.shared();
      co_await rank.until([&] { return shared.counters.fused_ops > 0; });
      rank.stop(kDelay);  // in the middle of it
      co_await rank.compute(0);
    }
    EXPECT((co_await rank.wait(operation)).ok());
  });
  job.run();
  const auto numbers = job.rank(0).shared().usage.numbers();
  EXPECT_OR(about(numbers.moving_ns, kDelay, 0.02), numbers_of(numbers));
  EXPECT_OR(about(numbers.exposed_moving_ns, kDelay, 0.02), numbers_of(numbers));
  EXPECT_OR(seconds(numbers.waiting_ns) < 0.02, numbers_of(numbers));
}

// Whatever way operations end, every stage that they entered is left.
TEST(nothing_goes_on_when_all_has_ended) {
  for (const bool memory : {true, false}) {
    Job job({.hosts = {0, 0, 0}, .shared_memory = memory}, usual());
    job.begin([](Rank& rank) -> Program {
      const std::vector<std::int64_t> members = {0, 2};
      for (int step = 0; step < 3; ++step) {
        for (int i = 0; i < 4; ++i) {
          EXPECT((co_await rank.allreduce("x" + std::to_string(i), 1000)).ok());
        }
        const base::Status differs = co_await rank.allreduce("differs", 2 + rank.number());
        EXPECT(differs.code == base::ErrorCode::kMismatch);
      }
      EXPECT((co_await rank.add_set(members)).ok());
      if (rank.number() != 1) EXPECT((co_await rank.allreduce("in set", 4, 1)).ok());
      EXPECT((co_await rank.barrier()).ok());
      if (rank.number() == 0) EXPECT((co_await rank.allreduce("alone")).ok());
      EXPECT((co_await rank.join()).ok());
      const auto first = rank.shared().usage.numbers();
      co_await rank.compute(10);
      const auto second = rank.shared().usage.numbers();
      EXPECT(about(second.time_ns - first.time_ns, 10, 0.3));
      EXPECT(second.negotiating_ns == first.negotiating_ns);
      EXPECT(second.waiting_ns == first.waiting_ns);
      EXPECT(second.moving_ns == first.moving_ns);
      EXPECT(second.exposed_ns == first.exposed_ns);
      EXPECT(rank.shared().counters.failed == 3);
    });
    job.run();
  }
}

}  // namespace
}  // namespace hvdlite::sim::usage_test
