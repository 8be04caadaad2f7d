// Every way in which a rank ends, at every moment at which there is an engine, on every layout of hosts: the others learn why, in
// time, and nobody waits for ever. These are the rows of docs/failures.md but for `init()` and the end of the program.
#include <algorithm>

#include "harness.h"
#include "sim/job.h"

namespace hvdlite::sim::endings_test {
namespace {

constexpr int kCulprit = 1;
constexpr double kStallLimit = 3;

enum class Ending { kRaises, kLeaves, kDies, kIsStopped, kLosesHost, kLosesLink };
enum class Place { kNegotiation, kCollective, kComputing };

struct Named {
  const char* name;
  Ending ending;
};
constexpr Named kEndings[] = {{"raises", Ending::kRaises},
                              {"leaves", Ending::kLeaves},
                              {"dies", Ending::kDies},
                              {"is_stopped", Ending::kIsStopped},
                              {"loses_its_host", Ending::kLosesHost},
                              {"loses_its_link", Ending::kLosesLink}};
struct NamedPlace {
  const char* name;
  Place place;
};
constexpr NamedPlace kPlaces[] = {{"others_wait", Place::kNegotiation},
                                  {"data_move", Place::kCollective},
                                  {"others_compute", Place::kComputing}};
struct Layout {
  const char* name;
  std::vector<int> hosts;
  bool shared_memory = true;
  bool ledger_copies = true;
};
const std::vector<Layout> kLayouts = {{"one_host", {0, 0, 0}, true},
                                      {"one_host_by_messages", {0, 0, 0}, false, false},
                                      {"alone_on_its_host", {0, 1, 2}},
                                      {"with_a_neighbour", {0, 1, 1, 2}}};

struct Case {
  Ending ending;
  Place place;
  Layout layout;
  bool mpi_tells;

  bool is_a_hang() const { return ending == Ending::kIsStopped; }
  bool cuts_off(int rank) const {
    const bool host = ending == Ending::kLosesHost || ending == Ending::kLosesLink;
    return rank == kCulprit ||
           (host && layout.hosts[static_cast<std::size_t>(rank)] == layout.hosts[kCulprit]);
  }
  bool neighbour_survives() const {
    return !cuts_off(2) && std::ranges::count(layout.hosts, layout.hosts[kCulprit]) > 1;
  }
};

base::Config knobs(const Case& one) {
  base::Config config = usual();
  config.stall_check_time_seconds = one.is_a_hang() ? 1 : 0;
  config.stall_shutdown_time_seconds = one.is_a_hang() ? kStallLimit : 0;
  return config;
}

// What the others' texts say. Either rank of a lost host may be the one that is named.
std::vector<std::string> causes(const Case& one) {
  switch (one.ending) {
    case Ending::kRaises:
      return {"rank 1 (host h" + std::to_string(one.layout.hosts[kCulprit]) +
              ") raised ValueError: bad batch 17"};
    case Ending::kLeaves:
      return {"rank 1 (host h" + std::to_string(one.layout.hosts[kCulprit]) + ") has left"};
    case Ending::kDies:
    case Ending::kLosesHost:
    case Ending::kLosesLink:
    case Ending::kIsStopped:
      break;
  }
  const std::string host = " (host h" + std::to_string(one.layout.hosts[kCulprit]) + ")";
  return {"rank 1" + host, "rank 2" + host};
}

// Seconds from the moment in which all others know it. An engine that waits for nothing here looks every 0.25 s, one that waits
// for others every 10 ms (every 5 at most where no bell reaches it), and each looks for the dead every 20 ms.
double promised(const Case& one) {
  const bool seen = one.mpi_tells || one.neighbour_survives() ||
                    (one.ending == Ending::kDies && one.layout.hosts == std::vector<int>{0, 0, 0});
  const double look = one.place == Place::kComputing ? 0.25 : 0.01;
  switch (one.ending) {
    case Ending::kRaises:
    case Ending::kLeaves:
      return one.place == Place::kComputing ? 0.05 : 0.006;
    case Ending::kIsStopped:
      // The one that computes begins to wait when it has computed; whoever does not answer is given a while. A host is silent
      // before that where the stopped rank speaks for it, but for no shorter time.
      return kStallLimit + 2.6;
    case Ending::kDies:
    case Ending::kLosesHost:
      if (seen && one.ending == Ending::kDies) return 0.022 + look;
      if (one.mpi_tells) return 0.022 + look;
      return 10.1;
    case Ending::kLosesLink:
      return 10.1;
  }
  return 0;
}

// One run: the ranks warm up, and then rank 1 ends while the others do what the place says.
struct Run {
  explicit Run(const Case& which)
      : one(which),
        job({.hosts = which.layout.hosts,
             .shared_memory = which.layout.shared_memory,
             .mpi_tells = which.mpi_tells,
             .ledger_copies = which.layout.ledger_copies},
            knobs(which)) {
    outcomes.resize(one.layout.hosts.size());
    job.begin([this](Rank& rank) { return program(rank); });
    job.run(120);
  }

  void end_from_outside() {
    moment = job.now();
    Rank& culprit = job.rank(kCulprit);
    const int host = one.layout.hosts[kCulprit];
    if (one.ending == Ending::kDies) culprit.die();
    if (one.ending == Ending::kIsStopped) culprit.stop(60);
    if (one.ending == Ending::kLosesHost) job.lose_host(host);
    if (one.ending == Ending::kLosesLink) job.cut_link(host);
  }

  Program program(Rank& rank) {
    for (int step = 0; step < 3; ++step) EXPECT((co_await rank.allreduce("warmup")).ok());
    EXPECT((co_await rank.barrier()).ok());
    std::vector<Operation*> mine;
    const bool culprit = rank.number() == kCulprit;
    if (one.place == Place::kNegotiation && culprit) co_await rank.compute(0.3);
    if (one.place == Place::kCollective) {
      for (int i = 0; i < 16; ++i) {
        mine.push_back(&rank.start("gradient." + std::to_string(i), 20'000));
      }
      if (culprit) EXPECT((co_await rank.wait(*mine[0])).ok());
    }
    if (one.place == Place::kComputing) co_await rank.compute(culprit ? 0.1 : 1.0);
    if (culprit) {
      end_from_outside();
      if (one.ending == Ending::kRaises) {
        co_await rank.raise("ValueError: bad batch 17");
        co_return;
      }
      if (one.ending == Ending::kLeaves) {
        co_await rank.leave();
        co_return;
      }
      if (rank.dead()) co_return;
      co_await rank.compute(60);
    }
    for (Operation* each : mine) outcomes[index(rank)].push_back(co_await rank.wait(*each));
    outcomes[index(rank)].push_back(co_await rank.allreduce("next"));
    knew.push_back(job.now());
  }

  static std::size_t index(const Rank& rank) { return static_cast<std::size_t>(rank.number()); }

  const Case one;
  Time moment;
  std::vector<std::vector<base::Status>> outcomes;
  std::vector<Time> knew;
  Job job;
};

void check_survivor(Run& run, Rank& rank) {
  const Case& one = run.one;
  const std::vector<base::Status>& outcomes = run.outcomes[Run::index(rank)];
  EXPECT(!outcomes.empty() && !outcomes.back().ok());
  const std::vector<std::string> expected = causes(one);
  const auto names_it = [&](const std::string& text) {
    return std::ranges::any_of(
        expected, [&](const std::string& part) { return text.find(part) != std::string::npos; });
  };
  // What ended well before is right, and whatever failed says why.
  for (const base::Status& each : outcomes) {
    if (each.ok()) continue;
    EXPECT_OR(names_it(each.message), each.message);
    EXPECT_HAS(each.message, "Horovod has been shut down");
  }
  if (one.ending == Ending::kLeaves) {
    EXPECT(!rank.failed() && outcomes.back().code == base::ErrorCode::kAborted);
    return;
  }
  EXPECT(rank.failed() && outcomes.back().code == base::ErrorCode::kPeerLost);
  EXPECT_OR(names_it(rank.failure().message), rank.failure().message);
  const double seconds = base::seconds_between(run.moment, rank.failed_at());
  EXPECT_OR(seconds >= 0 && seconds <= promised(one), std::to_string(seconds));
}

void carry_out(const Case& one) {
  Run run(one);
  for (Rank& rank : run.job.ranks()) {
    if (one.cuts_off(rank.number())) continue;
    try {
      check_survivor(run, rank);
    } catch (const native_test::Failure& failure) {
      throw native_test::Failure("rank " + std::to_string(rank.number()) + ": " + failure.what() +
                                 "\n" + run.job.log().text());
    }
  }
  if (one.ending == Ending::kLeaves) return;
  // Each survivor that knew an operation tells the last ones.
  const std::size_t survivors = static_cast<std::size_t>(std::ranges::count_if(
      run.job.ranks(), [&](const Rank& rank) { return !one.cuts_off(rank.number()); }));
  EXPECT(run.job.log().lines("last operations of this rank").size() >= survivors);
}

bool can_be(const Case& one) {
  const bool several = std::ranges::count(one.layout.hosts, 0) != 3;
  const bool about_hosts = one.ending == Ending::kLosesHost || one.ending == Ending::kLosesLink;
  return several || (!about_hosts && !one.mpi_tells);
}

const bool kKnown = [] {
  for (const Named& ending : kEndings) {
    for (const NamedPlace& place : kPlaces) {
      for (const Layout& layout : kLayouts) {
        for (const bool mpi_tells : {false, true}) {
          const Case one{ending.ending, place.place, layout, mpi_tells};
          if (!can_be(one)) continue;
          const std::string name = std::string("a_rank_") + ending.name + "_while_" + place.name +
                                   "." + layout.name + (mpi_tells ? ".mpi_tells" : "");
          native_test::Registration(__FILE__, name, [one] { carry_out(one); });
        }
      }
    }
  }
  return true;
}();

// MPI refuses the message to rank 0. Rank 2, which comes after rank 0, is told nevertheless.
TEST(a_rank_that_cannot_be_told_keeps_the_failure_from_no_other) {
  Job job({.hosts = {0, 1, 2}}, usual());
  job.begin([&](Rank& rank) -> Program {
    EXPECT((co_await rank.allreduce("before")).ok());
    if (rank.number() == kCulprit) {
      job.network().node(kCulprit).refused_to = 0;
      co_await rank.raise("ValueError: bad batch 17");
      co_return;
    }
    const Time begun = job.now();
    const base::Status status = co_await rank.allreduce("after");
    EXPECT(!status.ok());
    if (rank.number() != 2) co_return;
    EXPECT_HAS(status.message, "bad batch 17");
    EXPECT(job.seconds_since(begun) < 1);
  });
  job.run(60);
  EXPECT(job.log().lines("could not tell rank 0 (host h0) of the failure").size() == 1);
}

}  // namespace
}  // namespace hvdlite::sim::endings_test
