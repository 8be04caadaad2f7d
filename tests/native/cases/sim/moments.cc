// One rank dies, raises or leaves at every moment of a run there is, one run for each: whatever the others get until then is
// right, then all of them get an error that names it, soon, and nobody waits for ever.
#include <algorithm>
#include <random>

#include "harness.h"
#include "sim/job.h"

namespace hvdlite::sim::moments_test {
namespace {

using base::ErrorCode;
using base::OpKind;

struct Way {
  const char* name;
  bool shared_memory;
  bool several_hosts;
  bool ledger_copies = true;
};
constexpr Way kWays[] = {{"memory", true, false},
                         {"messages", false, false, false},
                         {"copies", false, false},
                         {"hosts", true, true}};

// Operations drawn from a seed: each step the same on all ranks, in an order of each rank's own.
struct Schedule {
  Schedule(const Way& way, std::uint32_t from) : seed(from) {
    std::mt19937 draw(seed);
    const int size = 2 + static_cast<int>(draw() % 3);
    victim = static_cast<int>(draw() % static_cast<std::uint32_t>(size));
    // Some rank shares the victim's host and sees its death at once. Without one, the others would only notice after the timeout
    // between hosts (heartbeat.h).
    shape.hosts.resize(static_cast<std::size_t>(size));
    if (way.several_hosts) {
      shape.hosts.push_back(0);
      for (std::size_t rank = 0; rank < shape.hosts.size(); ++rank) {
        shape.hosts[rank] = static_cast<int>(rank) == victim || draw() % 2 == 0 ? 0 : 1;
      }
      shape.hosts[victim == 0 ? 1 : 0] = 0;
    }
    shape.shared_memory = way.shared_memory;
    shape.ledger_copies = way.ledger_copies;
    shape.seed = seed % 3;
    config = usual();
    const std::size_t thresholds[] = {1, 4096, std::size_t{64} << 20};
    config.fusion_threshold = thresholds[draw() % 3];
    const std::size_t capacities[] = {0, 3, 1024};
    config.cache_capacity = capacities[draw() % 3];
    config.log_level = base::LogLevel::kOff;
  }

  std::vector<engine::Request> step(int number, int rank) const {
    std::mt19937 draw(1000 * seed + static_cast<std::uint32_t>(number));
    std::vector<engine::Request> requests(1 + draw() % 8);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      constexpr OpKind kKinds[] = {OpKind::kAllreduce, OpKind::kAllreduce, OpKind::kAllgather,
                                   OpKind::kBroadcast, OpKind::kBarrier};
      constexpr std::int64_t kElements[] = {0, 1, 5, 1000, 9000};
      engine::Request& request = requests[i];
      request.set = {0, 1};
      request.kind = kKinds[draw() % 5];
      request.op = base::ReduceOp::kSum;
      const std::int64_t elements = kElements[draw() % 5];
      if (request.kind != OpKind::kBarrier) request.shape = {elements};
      if (request.kind == OpKind::kBroadcast) request.root = size() - 1;
      request.name = std::to_string(static_cast<int>(request.kind)) + "." + std::to_string(i);
      if (draw() % 10 < 3) request.name += "." + std::to_string(number);
    }
    std::mt19937 own(7 * seed + 100 * static_cast<std::uint32_t>(number) +
                     static_cast<std::uint32_t>(rank));
    std::ranges::shuffle(requests, own);
    return requests;
  }
  int size() const { return static_cast<int>(shape.hosts.size()); }

  std::uint32_t seed;
  int victim = 0;
  Shape shape;
  base::Config config;
};

bool all_are(std::span<const float> values, float expected) {
  return std::ranges::all_of(values, [&](float each) { return each == expected; });
}

bool is_right(const engine::Request& request, const Operation& operation, int size) {
  if (request.kind == OpKind::kAllreduce) {
    return all_are(operation.output, static_cast<float>(size * (size + 1) / 2));
  }
  if (request.kind == OpKind::kBroadcast)
    return all_are(operation.output, static_cast<float>(size));
  if (request.kind != OpKind::kAllgather) return true;
  const auto* all = static_cast<const float*>(operation.completion->output->data());
  const auto rows = static_cast<std::size_t>(request.shape[0]);
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(size); ++rank) {
    if (!all_are({all + rank * rows, rows}, static_cast<float>(rank + 1))) return false;
  }
  return true;
}

constexpr int kSteps = 4;

// Steps until an error ends them, or all are done; then an operation that needs everybody.
Program work(Rank& rank, const Schedule& schedule, base::Status& end, int& arrived) {
  for (int number = 0; number < kSteps && end.ok(); ++number) {
    const std::vector<engine::Request> requests = schedule.step(number, rank.number());
    std::vector<Operation*> mine;
    for (const engine::Request& request : requests) mine.push_back(&rank.start(request));
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const base::Status status = co_await rank.wait(*mine[i]);
      EXPECT(!status.ok() || is_right(requests[i], *mine[i], rank.size()));
      if (end.ok()) end = status;
    }
  }
  ++arrived;
  if (end.ok() && rank.number() != schedule.victim) end = co_await rank.barrier("last");
  if (rank.number() == schedule.victim) co_await rank.compute(30);
}

enum class Ending { kDies, kRaises };

// At this moment of the run; false if it was over before.
bool end_at(const Schedule& schedule, std::uint64_t turn, Ending ending) {
  Job job(schedule.shape, schedule.config);
  std::vector<base::Status> ends(schedule.shape.hosts.size());
  int arrived = 0;
  job.begin([&](Rank& rank) {
    return work(rank, schedule, ends[static_cast<std::size_t>(rank.number())], arrived);
  });
  Time moment;
  job.at_turn(turn, [&] {
    moment = job.now();
    Rank& victim = job.rank(schedule.victim);
    if (ending == Ending::kDies) victim.die();
    if (ending == Ending::kRaises)
      victim.replace(
          [](Rank& rank) -> Program { co_await rank.raise("ValueError: bad batch 17"); });
  });
  job.run(60);
  const std::string who = "rank " + std::to_string(schedule.victim);
  for (const Rank& rank : job.ranks()) {
    if (rank.number() == schedule.victim) continue;
    const base::Status& end = ends[static_cast<std::size_t>(rank.number())];
    EXPECT_OR(end.code == ErrorCode::kPeerLost, end.message);
    EXPECT_HAS(end.message, who);
    EXPECT_HAS(rank.failure().message, who);
    if (ending == Ending::kRaises) EXPECT_HAS(rank.failure().message, "bad batch 17");
    const double seconds = base::seconds_between(moment, rank.failed_at());
    EXPECT_OR(seconds <= 0.04, std::to_string(seconds));
  }
  return job.acted();
}

// How many moments there are until all ranks only wait for the one that ends, and a few of those.
std::uint64_t moments_of(const Schedule& schedule) {
  Job job(schedule.shape, schedule.config);
  std::vector<base::Status> ends(schedule.shape.hosts.size());
  int arrived = 0;
  job.begin([&](Rank& rank) {
    return work(rank, schedule, ends[static_cast<std::size_t>(rank.number())], arrived);
  });
  while (arrived < schedule.size()) EXPECT(job.round());
  return job.turns() + 12;
}

void end_at_every_moment(const Way& way, std::uint32_t seed, Ending ending) {
  const Schedule schedule(way, seed);
  const std::uint64_t last = moments_of(schedule);
  for (std::uint64_t turn = 0; turn < last; ++turn) {
    try {
      EXPECT(end_at(schedule, turn, ending));
    } catch (const native_test::Failure& failure) {
      throw native_test::Failure("at turn " + std::to_string(turn) + " of " + std::to_string(last) +
                                 ": " + failure.what());
    }
  }
}

// A rank leaves while an operation is under way, that may be decided just then: the others get the whole result or an error.
std::string leave_at(const Way& way, int leaver, std::uint64_t seed, std::uint64_t turn) {
  Shape shape = one_host(3);
  if (way.several_hosts) shape.hosts = {0, 1, 2};
  shape.shared_memory = way.shared_memory;
  shape.ledger_copies = way.ledger_copies;
  shape.seed = seed;
  base::Config config = usual();
  config.log_level = base::LogLevel::kOff;
  Job job(shape, config);
  bool leaves = false;
  std::string ends;
  job.begin([&](Rank& rank) -> Program {
    EXPECT((co_await rank.barrier()).ok());
    Operation& operation = rank.start("x", 1000);
    if (rank.number() == leaver) {
      co_await rank.until([&] { return leaves; });
      co_await rank.leave();
      EXPECT(operation.ended());
      co_return;
    }
    const base::Status status = co_await rank.wait(operation);
    EXPECT(status.ok() ? all_are(operation.output, 6) : status.code == ErrorCode::kAborted);
    ends += status.ok() ? "w" : "a";
  });
  job.at_turn(turn, [&] {
    leaves = true;
    job.network().node(leaver).rung = true;
  });
  job.run(60);
  EXPECT(job.acted());
  for (const Rank& rank : job.ranks()) EXPECT(!rank.failed());
  return ends;
}

constexpr std::uint64_t kTurnsToLeave = 60;  // then the operation has ended on all ranks

constexpr struct {
  const char* name;
  Ending ending;
  std::uint32_t seeds;
} kEndings[] = {{"dies", Ending::kDies, 12}, {"raises", Ending::kRaises, 5}};

const bool kKnown = [] {
  for (const Way& way : kWays) {
    for (const auto& [name, ending, seeds] : kEndings) {
      for (std::uint32_t seed = 0; seed < seeds; ++seed) {
        native_test::Registration(
            __FILE__, std::string("a_rank_") + name + "." + way.name + "." + std::to_string(seed),
            [&way, seed, ending = ending] { end_at_every_moment(way, seed, ending); });
      }
    }
    native_test::Registration(__FILE__, std::string("a_rank_leaves.") + way.name, [way] {
      bool aborted = false, whole = false;
      for (std::uint64_t turn = 0; turn < kTurnsToLeave; ++turn) {
        for (const int leaver : {0, 1}) {
          for (std::uint64_t seed = 0; seed < 6; ++seed) {
            const std::string ends = leave_at(way, leaver, seed, turn);
            EXPECT_OR(ends == "ww" || ends == "aa", ends + " at turn " + std::to_string(turn));
            (ends == "ww" ? whole : aborted) = true;
          }
        }
      }
      EXPECT(aborted && whole);  // both were met
    });
  }
  return true;
}();

}  // namespace
}  // namespace hvdlite::sim::moments_test
