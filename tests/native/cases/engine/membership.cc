// Membership by itself: jobs of its machines, in one thread and in a time of their own; and every order of small endings.
#include <functional>
#include <unordered_set>

#include "engine/membership_job.h"
#include "harness.h"

namespace hvdlite::engine::membership_test {
namespace {

const std::vector<int> kOneHost = {0, 0, 0}, kTwoHosts = {0, 0, 2, 2};

TEST(who_leaves_is_told_of_and_answered) {
  Job job(kOneHost);
  job.leave(2, {0});
  EXPECT(job[2].membership.said_goodbye() && !job[2].membership.goodbyes_answered());
  job.run(1);
  for (const int rank : {0, 1}) {
    EXPECT_HAS(job[rank].left[2], "rank 2 has left: its program ended or called shutdown()");
    EXPECT(job[rank].membership.roster().has_left(2));
    EXPECT(!job[rank].failure);
  }
  EXPECT(job[2].undecided == std::set<int>{0});
  EXPECT(job[2].membership.goodbyes_answered());
}

TEST(a_failure_ends_all_and_is_heard_of_by_all) {
  Job job(kTwoHosts);
  job.raise(3, "raised ValueError: no data");
  EXPECT(!job[3].membership.failure_seen_by_all());
  job.run(1);
  EXPECT(job[3].membership.failure_seen_by_all());
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT(job[rank].failure->message ==
           "rank 3 raised ValueError: no data. Horovod has been shut down");
    EXPECT(job[rank].failure->code ==
           (rank == 3 ? base::ErrorCode::kAborted : base::ErrorCode::kPeerLost));
  }
}

TEST(an_error_below_is_this_ranks_own_and_told) {
  Job job(kOneHost);
  const Membership::Actions actions = job[1].membership.fail(base::ErrorCode::kSystem, "no memory");
  EXPECT(actions.size() == 2);
  const auto& told = std::get<Membership::Announce>(actions[0]);
  EXPECT(told.cause == "failed: no memory" && told.ranks == (std::vector{0, 2}));
  EXPECT(std::get<Membership::Fail>(actions[1]).why.message ==
         "rank 1 failed: no memory. Horovod has been shut down");
}

TEST(neighbours_tell_other_hosts_of_a_death) {
  Job job(kTwoHosts);
  job.die(1);
  job.run(1);
  EXPECT_HAS(job[0].failure->message, "rank 1 ended without telling the other ranks. Horovod");
  for (const int rank : {2, 3}) {
    EXPECT_HAS(job[rank].failure->message,
               "rank 0 has lost its neighbour: rank 1 ended without telling the other ranks");
  }
}

TEST(a_host_that_is_silent_is_lost) {
  Job job(kTwoHosts);
  job.run(30);
  for (int rank = 0; rank < 4; ++rank) EXPECT(!job[rank].failure);
  job.stopped = {2, 3};
  job.run(7);
  EXPECT(!job[0].failure);
  job.run(5);
  for (const int rank : {0, 1}) {
    EXPECT_HAS(job[rank].failure->message,
               "rank 0 has heard nothing for 10 s (HVDLITE_PEER_TIMEOUT) from the host of rank 2, "
               "rank 3");
  }
}

TEST(who_has_said_goodbye_is_not_silent) {
  Job job(kTwoHosts);
  job.leave(2);
  job.leave(3);
  job.run(1);
  job.stopped = {2, 3};
  job.run(60);
  EXPECT(!job[0].failure && !job[1].failure);
}

// Each rank waits: rank `odd` for the operation b, and the others for a.
Job job_in_deadlock(int odd) {
  Job job(kOneHost);
  for (int rank = 0; rank < 3; ++rank) {
    job.submit(rank, rank == odd ? "b" : "a");
    job[rank].facts.waits = true;
  }
  return job;
}

TEST(ranks_that_wait_for_each_other_get_a_verdict) {
  Job job = job_in_deadlock(2);
  job.run(9);
  EXPECT(job[0].verdicts.empty());
  job.run(4);
  EXPECT(job[0].verdicts.size() == 1);
  EXPECT(job[0].verdicts[0].names == (std::vector<std::string>{"a", "b"}));
  EXPECT_HAS(job[0].verdicts[0].text, "rank 2 waits for allreduce of 'b' in process set 0");
}

TEST(a_rank_that_answered_a_probe_as_not_blocked_reports_again) {
  Job job = job_in_deadlock(1);
  job.run(7);
  job[1].facts.unclear = true;  // since its report
  job.run(20);
  EXPECT(job[0].verdicts.empty());
  job[1].facts.unclear = false;
  job.run(20);
  EXPECT(job[0].verdicts.size() == 1);
}

TEST(who_computes_is_in_no_deadlock) {
  Job job(kOneHost);
  for (const int rank : {0, 1}) {
    job.submit(rank, "a");
    job[rank].facts.waits = true;
  }
  job.run(60);
  EXPECT(job[0].verdicts.empty());
}

TEST(what_a_rank_that_computes_can_complete_gets_no_verdict) {
  Roster roster(0, {{0, "rank 0"}, {0, "rank 1"}, {0, "rank 2"}});
  const SetId set{0, 1};
  roster.add_set(set, std::make_shared<const std::vector<int>>(std::vector{0, 1, 2}));
  DeadlockDetector detector(base::microseconds(1'000'000));
  const auto report = [&](std::uint64_t probe) {
    for (const int rank : {0, 1}) {
      BlockedReport blocked{.probe = probe, .blocked = true, .open = {}};
      const std::string name = rank == 0 ? "a" : "b";
      for (const auto& [open, waited_for] : {std::pair(name, true), {"of all", false}}) {
        blocked.open.push_back(
            {.set = set, .name = open, .group = {}, .waited_for = waited_for, .not_asking = {}});
      }
      detector.report(rank, std::move(blocked));
    }
  };
  const Time begin = Time() + base::from_seconds(1);
  report(0);
  EXPECT(detector.tick(begin, roster).probe.empty());
  const DeadlockDetector::Actions probes = detector.tick(begin + base::from_seconds(2), roster);
  EXPECT(probes.probe == (std::vector{0, 1}));
  report(probes.number);
  const auto verdicts = detector.tick(begin + base::from_seconds(2), roster).verdicts;
  EXPECT(verdicts.size() == 1);
  // Rank 2 computes, and may still submit the operation that only it lacks.
  EXPECT(verdicts[0].second.names == (std::vector<std::string>{"a", "b"}));
  // It may have asked for 'a' or 'b' already, so the text does not say that it lacks them.
  EXPECT_HAS(verdicts[0].second.text,
             "rank 0 waits for allreduce of 'a' in process set 0, missing on rank 1; rank 1 waits "
             "for allreduce of 'b' in process set 0, missing on rank 0;");
}

TEST(suspects_without_reports_are_forgotten) {
  Roster roster(0, {{0, "rank 0"}, {0, "rank 1"}});
  const SetId set{0, 1};
  roster.add_set(set, std::make_shared<const std::vector<int>>(std::vector{0, 1}));
  DeadlockDetector detector(base::microseconds(1'000'000));
  const auto report = [&](std::uint64_t probe, bool blocked) {
    for (const int rank : {0, 1}) {
      BlockedReport each{.probe = probe, .blocked = blocked, .open = {}};
      each.open.push_back({.set = set,
                           .name = rank == 0 ? "a" : "b",
                           .group = {},
                           .waited_for = true,
                           .not_asking = {}});
      detector.report(rank, std::move(each));
    }
  };
  Time now = Time() + base::from_seconds(1);
  const auto tick = [&] {
    now += base::from_seconds(2);
    return detector.watching() ? detector.tick(now, roster) : DeadlockDetector::Actions();
  };
  report(0, true);
  tick();
  const std::uint64_t probe = tick().number;
  EXPECT(probe != 0);
  report(probe, false);
  tick();
  report(0, true);
  EXPECT(tick().verdicts.empty());
}

TEST(a_stall_is_told_by_one_rank_with_the_place_in_the_program) {
  Job job(kOneHost, {0, {10, 0}, 0});
  for (const int rank : {0, 1}) job.submit(rank, "a");
  job[2].facts.where = "in train.py:17";
  job.run(9);
  EXPECT(job[0].log.empty());
  job.run(5);
  EXPECT(job[1].log.empty() && job[0].log.size() == 1);
  EXPECT_HAS(job[0].log[0], "allreduce of 'a' in process set 0 has waited");
  EXPECT_HAS(job[0].log[0], "for rank 2, which has not submitted it: in train.py:17");
}

TEST(a_stall_without_end_is_given_up_by_all) {
  Job job(kOneHost, {0, {0, 20}, 0});
  for (const int rank : {0, 1}) job.submit(rank, "a");
  job.stopped = {2};
  job.run(30);
  for (const int rank : {0, 1}) {
    EXPECT_HAS(job[rank].failure->message, "gave up after 20 s");
    EXPECT_HAS(job[rank].failure->message, "rank 2, which does not answer: it is stopped");
  }
}

TEST(a_copy_goes_its_own_way) {
  Job job(kTwoHosts);
  job.run(5);
  Job copy = job;
  EXPECT(copy.digest() == job.digest());
  copy.leave(3);
  EXPECT(copy.digest() != job.digest());
  copy.run(2);
  EXPECT(!job[0].membership.roster().has_left(3));
  job.leave(3);
  job.run(2);
  EXPECT(copy.digest() == job.digest());
}

// --- every order ------------------------------------------------------------------------------------------------------

using Step = std::function<void(Job&)>;

// Steps the job in all orders of what its ranks do (`steps`, each once), of arrivals, and of looks at the dead. Calls check(job)
// where nothing is left to do; gives how many states there are.
std::size_t explore(const Job& begin, const std::vector<Step>& steps,
                    const std::function<void(Job&)>& check) {
  std::unordered_set<std::uint64_t> seen;
  const std::function<void(const Job&, std::uint32_t)> visit = [&](const Job& job,
                                                                   std::uint32_t taken) {
    if (!seen.insert(base::mix64(job.digest() + taken)).second) return;
    bool any = false;
    const auto go = [&](std::uint32_t more, const Step& step) {
      any = true;
      Job next = job;
      step(next);
      visit(next, taken | more);
    };
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto bit = std::uint32_t{1} << i;
      if ((taken & bit) == 0) go(bit, steps[i]);
    }
    for (const auto& wire : job.busy()) go(0, [&](Job& next) { next.deliver(wire); });
    Job last = job;
    for (int rank = 0; rank < last.size(); ++rank) {
      const Job::Rank& one = last[rank];
      if (one.dead || one.failure || one.facts.lost.empty()) continue;
      go(0, [&](Job& next) { next.look_for_lost(rank); });
    }
    if (!any) check(last);
  };
  visit(begin, 0);
  return seen.size();
}

// What a rank does unless it has failed, or its process has ended.
Step if_alive(int rank, Step step) {
  return [=](Job& job) {
    if (!job[rank].failure && !job[rank].dead) step(job);
  };
}

TEST(in_every_order_goodbyes_are_answered) {
  const auto states = explore(
      Job(kOneHost), {[](Job& job) { job.leave(1, {0}); }, [](Job& job) { job.leave(2, {0}); }},
      [](Job& job) {
        EXPECT(job[0].left.size() == 2 && !job[0].failure);
        for (const int rank : {1, 2}) {
          EXPECT(job[rank].membership.goodbyes_answered());
          EXPECT(job[rank].undecided == std::set<int>{0});
        }
      });
  EXPECT_OR(states > 20, std::to_string(states));
}

// A coordinator that has failed first answers, too, or shutdown() would wait for its time limit.
TEST(in_every_order_who_fails_learns_that_all_know_also_beside_a_goodbye) {
  const auto states =
      explore(Job(kOneHost),
              {if_alive(1, [](Job& job) { job.leave(1, {0}); }),
               if_alive(2, [](Job& job) { job.raise(2, "raised"); })},
              [](Job& job) {
                EXPECT(job[0].failure);
                EXPECT_HAS(job[0].failure->message, "rank 2 raised");
                EXPECT(job[2].membership.failure_seen_by_all());
                const Membership& leaving = job[1].membership;
                EXPECT(job[1].failure || !leaving.said_goodbye() || leaving.goodbyes_answered());
              });
  EXPECT_OR(states > 20, std::to_string(states));
}

TEST(in_every_order_a_death_ends_all_that_are_left) {
  const auto states = explore(
      Job(kTwoHosts),
      {[](Job& job) { job.die(1); }, if_alive(3, [](Job& job) { job.leave(3, {0}); })},
      [](Job& job) {
        for (const int rank : {0, 2}) {
          EXPECT(job[rank].failure);
          EXPECT_HAS(job[rank].failure->message, "rank 1 ended without telling the other ranks");
        }
        EXPECT(job[3].failure || job[3].membership.goodbyes_answered());
      });
  EXPECT_OR(states > 20, std::to_string(states));
}

TEST(in_every_order_two_failures_at_once_are_both_heard_of) {
  const auto states = explore(Job(kOneHost),
                              {if_alive(1, [](Job& job) { job.raise(1, "raised"); }),
                               if_alive(2, [](Job& job) { job.raise(2, "raised, too"); })},
                              [](Job& job) {
                                EXPECT(job[0].failure && job[1].failure && job[2].failure);
                                for (const int rank : {1, 2}) {
                                  EXPECT(job[rank].membership.failure_seen_by_all());
                                }
                              });
  EXPECT_OR(states > 20, std::to_string(states));
}

}  // namespace
}  // namespace hvdlite::engine::membership_test
