// Negotiation by itself: jobs of its machines, which exchange their messages through plain queues and agree in plain objects.
// Over 400 lines, because it has one case for each rule of the protocol.
#include <set>

#include "engine/negotiation_job.h"
#include "harness.h"

namespace hvdlite::engine::negotiation_test {
namespace {

int messages(Job& job) {
  int sent = 0;
  for (int rank = 0; rank < job.size(); ++rank) sent += job[rank].sent;
  return sent;
}

void expect_all_did(Job& job, const Did& what) {
  for (int rank = 0; rank < job.size(); ++rank) {
    std::string did;
    for (const std::string& each : job[rank].did) did += " " + each;
    EXPECT_OR(job[rank].did == what, "rank " + std::to_string(rank) + " did" + did);
  }
}

// --- in memory --------------------------------------------------------------------------------------------------------

TEST(what_all_ask_for_is_agreed_in_memory) {
  Job job(kOneHost);
  job.run();
  const CompletionPtr first = job[0].ask("x");
  job.run();
  EXPECT(!first->is_done() && job[0].negotiation().has_pending());
  job[1].ask("x");
  job.run();
  EXPECT(first->is_done() && !job[0].negotiation().has_pending());
  expect_all_did(job, {"x"});
  EXPECT(messages(job) == 0 && job[0].rung + job[1].rung > 0);
  EXPECT(job[0].last == 1 && job[0].counters.agreed_in_memory == 1);
}

TEST(the_order_is_that_of_the_last_to_ask) {
  Job job(kOneHost);
  job.run();
  for (const char* name : {"a", "b"}) {
    job[0].ask(name);
    job.run();
  }
  for (const char* name : {"b", "a"}) {
    job[1].ask(name);
    job.run();
  }
  expect_all_did(job, {"b", "a"});
}

TEST(what_is_announced_in_one_step_is_fused) {
  Job job(kOneHost);
  job.run();
  for (int rank = 0; rank < 2; ++rank) {
    for (const char* name : {"a", "b", "c"}) job[rank].ask(name);
  }
  job.run();
  expect_all_did(job, {"a+b+c"});
}

TEST(a_group_is_one_unit_in_the_order_of_its_places) {
  Job job(kOneHost);
  job.run();
  job[0].ask_group("g", {"b", "a"});
  job[1].ask_group("g", {"b", "a"});
  job.run();
  expect_all_did(job, {"b+a"});
  EXPECT(messages(job) == 0);
}

TEST(rows_that_are_equal_need_no_message_and_rows_that_were_not_go_by_message_at_once) {
  Job job(kOneHost);
  job.run();
  const auto ask = [&](std::int64_t of_0, std::int64_t of_1) {
    job[0].ask(allgather("x", of_0));
    job[1].ask(allgather("x", of_1));
    const int before = messages(job);
    job.run();
    return messages(job) - before;
  };
  EXPECT(ask(4, 4) == 0);
  const int diverted = ask(4, 5), at_once = ask(6, 5);
  EXPECT(diverted > 0 && at_once > 0);
  EXPECT(job[1].counters.agreed_in_memory == 1);
  EXPECT(ask(3, 3) > 0);  // the last rows differed
  EXPECT(ask(3, 3) == 0);
  expect_all_did(job, {"x(4,4)", "x(4,5)", "x(6,5)", "x(3,3)", "x(3,3)"});
}

TEST(rows_that_no_tensor_can_hold_fail_their_operation_alone) {
  Job job(kOneHost);
  job.run();
  for (int rank = 0; rank < 2; ++rank) {
    job[rank].ask(allgather("x", std::int64_t{1} << 58));  // each rank's part is a possible tensor
    job[rank].ask("y");
  }
  job.run();
  for (int rank = 0; rank < 2; ++rank) EXPECT_HAS(job[rank].failed["x"], "too many for a tensor");
  expect_all_did(job, {"y"});
}

TEST(unnamed_operations_of_a_kind_are_one_name_for_rows_that_differ) {
  Job job(kOneHost);
  job.run();
  for (int rank = 0; rank < 2; ++rank) {
    for (const char* name : {"allgather.noname.0", "allgather.noname.1"}) {
      job[rank].ask(allgather(name, 4 + rank));
      job.run();
    }
  }
  job[0].ask(allgather("allgather.noname.2", 4));
  job.run();
  EXPECT(job[0].negotiation().find(0)->has_pending());
  int announced = 0;
  job[0].negotiation().find(0)->for_each_announced_at_port([&](const Entry&) { ++announced; });
  EXPECT(announced == 0);
}

TEST(a_barrier_is_over_when_all_have_come_to_it) {
  Job job(kOneHost);
  job.run();
  std::vector<CompletionPtr> done;
  for (int rank = 0; rank < 2; ++rank) {
    Request barrier = allreduce("barrier", 0);
    barrier.kind = base::OpKind::kBarrier;
    done.push_back(job[rank].ask(barrier));
  }
  job.run();
  EXPECT(done[0]->is_done() && done[1]->is_done());
  expect_all_did(job, {});
}

TEST(an_operation_is_prepared_if_all_have_prepared_it) {
  Job job(kOneHost);
  job.run();
  for (const bool second_prepares : {true, false}) {
    job[0].prepares = true;
    job[1].prepares = second_prepares;
    for (int rank = 0; rank < 2; ++rank) job[rank].ask("x");
    job.run();
  }
  expect_all_did(job, {"x!", "x"});
}

TEST(only_what_is_alone_is_prepared) {
  Job job(kOneHost);
  job.run();
  for (int rank = 0; rank < 2; ++rank) {
    job[rank].prepares = true;
    for (const char* name : {"a", "b"}) job[rank].ask(name);
  }
  job.run();
  job[0].ask("c");
  job.run();
  for (int rank = 0; rank < 2; ++rank) job[rank].ask("d");
  job.run();
  job[1].ask("c");
  job.run();
  expect_all_did(job, {"a+b", "d", "c!"});
}

TEST(a_refused_step_is_tried_again) {
  Job job(kOneHost);
  job.run();
  for (int rank = 0; rank < 2; ++rank) job[rank].ask("x");
  job[0].trouble.allow = 0;
  job.pass(0);
  EXPECT(job[0].negotiation().tries_again());
  job[0].trouble.allow = Trouble::kAll;
  job.run();
  expect_all_did(job, {"x"});
  EXPECT(!job[0].negotiation().tries_again());
}

TEST(who_dies_in_a_step_leaves_nothing_of_it_and_stops_only_what_is_new) {
  Job job(kThree);
  job.run();
  for (int rank = 0; rank < 3; ++rank) job[rank].ask("x");
  job.pass(0);
  job.pass(1);
  job.pass(2);  // "x" is complete, and 0 and 1 have not read that
  job[2].ask("y");
  job[2].trouble.dies_in_step = true;
  job.pass(2);
  job.die(2);
  for (int rank = 0; rank < 2; ++rank) job[rank].ask("y");
  job.run();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT(job[rank].did == Did{"x"});
    EXPECT(job[rank].negotiation().tries_again() && job[rank].failed.empty());
  }
}

TEST(a_set_agrees_by_messages_until_all_have_left_its_region) {
  Job job(kOneHost, 1);
  job.run();
  // The set of all ranks has the only region: another one goes by messages, and gets none later.
  for (int rank = 0; rank < 2; ++rank) job[rank].add_set({0, 1});
  job.run();
  const int before = messages(job);
  for (int rank = 0; rank < 2; ++rank) job[rank].ask("x", 4, {1, 2});
  job.run();
  EXPECT(messages(job) > before);
  expect_all_did(job, {"x"});
}

// --- by messages ------------------------------------------------------------------------------------------------------

TEST(without_memory_the_coordinator_decides_and_slots_repeat_it) {
  Job job(kApart);
  for (int time = 0; time < 3; ++time) {
    for (int rank = 0; rank < 2; ++rank) job[rank].ask("x");
    job.run();
  }
  expect_all_did(job, {"x", "x", "x"});
  EXPECT(job[1].counters.cache_misses == 1 && job[1].counters.cache_hits == 2);
  EXPECT(job[1].counters.agreed_in_memory == 0);
}

TEST(a_mismatch_fails_on_all_and_the_name_agrees_in_memory_again) {
  Job job(kOneHost);
  job.run();
  job[0].ask("x", 4);
  job[1].ask("x", 5);
  job.run();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_HAS(job[rank].failed["x"], "allreduce of 'x' in process set 0");
    EXPECT_HAS(job[rank].failed["x"], "4");
    EXPECT_HAS(job[rank].failed["x"], "5");
  }
  const int before = messages(job);
  for (int rank = 0; rank < 2; ++rank) job[rank].ask("x", 6);
  job.run();
  expect_all_did(job, {"x"});
  EXPECT(messages(job) == before);
}

TEST(a_group_with_a_mismatch_fails_as_a_whole) {
  Job job(kOneHost);
  job.run();
  for (int rank = 0; rank < 2; ++rank) {
    for (int place = 0; place < 2; ++place) {
      Request request = allreduce(place == 0 ? "a" : "b", place == 0 ? 4 : 4 + rank);
      request.group = "g";
      request.group_size = 2;
      request.group_index = place;
      job[rank].ask(std::move(request));
    }
    job[rank].ask("c");
  }
  job.run();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT(job[rank].failed.size() == 2);
    EXPECT_HAS(job[rank].failed["a"], "'b'");
  }
  expect_all_did(job, {"c"});
}

TEST(a_joined_rank_takes_part_without_having_asked) {
  for (const std::vector<int>& hosts : {kOneHost, kApart}) {
    Job job(hosts);
    job.run();
    job[1].ask("w");
    const CompletionPtr joined = job[1].join();
    job[0].ask("w");
    job.run();
    job[0].ask("x");
    job.run();
    EXPECT((job[0].did == Did{"w", "x/1"}) && (job[1].did == Did{"w", "-x/1"}));
    EXPECT(!joined->is_done());
    job[1].ask("y");
    EXPECT_HAS(job[1].failed["y"], "this rank has joined the process set");
    const CompletionPtr last = job[0].join();
    job.run();
    EXPECT(joined->is_done() && last->is_done() && joined->value == 0 && last->value == 0);
    for (int rank = 0; rank < 2; ++rank) job[rank].ask("z");
    job.run();
    EXPECT(job[0].did.back() == "z" && job[1].did.back() == "z");
  }
}

// --- process sets -----------------------------------------------------------------------------------------------------

TEST(a_set_that_is_added_agrees_by_itself) {
  Job job(kThree);
  job.run();
  std::vector<CompletionPtr> added;
  for (int rank = 0; rank < 3; ++rank) added.push_back(job[rank].add_set({1, 2}));
  job.run();
  for (const CompletionPtr& each : added) EXPECT(each->is_done() && each->value == 1);
  const int before = messages(job);
  for (const int rank : {1, 2}) job[rank].ask("x", 4, {1, 2});
  job.run();
  EXPECT(job[0].did.empty() && job[1].did == Did{"x"} && job[2].did == Did{"x"});
  EXPECT(messages(job) == before);  // it has a region of its own
}

TEST(messages_for_a_set_that_come_before_it_is_known_are_kept) {
  Job job({0, 1, 2});
  job.run();
  for (int rank = 0; rank < 3; ++rank) job[rank].add_set({1, 2});
  for (int rank = 0; rank < 3; ++rank) job.pass(rank);
  for (const int rank : {1, 2}) job.deliver({rank, 0});
  job.pass(0);
  job.deliver({0, 2});  // rank 2 learns of the set first, and asks its coordinator, rank 1
  EXPECT(job[2].sets.size() == 2 && job[1].sets.size() == 1);
  job[2].ask("x", 4, {1, 2});
  job.pass(2);
  job.deliver({2, 1});
  EXPECT(job[1].did.empty());
  job.deliver({0, 1});
  job[1].ask("x", 5, {1, 2});  // not the same: so what was kept is compared
  job.run();
  for (const int rank : {1, 2}) EXPECT_HAS(job[rank].failed["x"], "in process set 1");
  for (const int rank : {1, 2}) job[rank].ask("x", 4, {1, 2});
  job.run();
  EXPECT(job[1].did == Did{"x"} && job[2].did == Did{"x"});
}

TEST(a_set_is_removed_when_all_that_is_under_way_there_has_ended) {
  Job job(kOneHost);
  job.run();
  for (int rank = 0; rank < 2; ++rank) job[rank].add_set({0, 1});
  job.run();
  job[0].busy = true;
  std::vector<CompletionPtr> removed;
  for (int rank = 0; rank < 2; ++rank) removed.push_back(job[rank].remove_set(1));
  job.run();
  EXPECT(!removed[1]->is_done() && job[0].negotiation().held_removals().size() == 1);
  job[0].ask("x", 4, {1, 2});
  EXPECT_HAS(job[0].failed["x"], "this rank is removing the process set");
  job[0].busy = false;
  job.run();
  EXPECT(removed[0]->is_done() && removed[1]->is_done() && job[0].sets.size() == 1);
  job[1].ask("y", 4, {1, 2});
  EXPECT_HAS(job[1].failed["y"], "the process set has been removed");
}

TEST(a_region_passes_on_when_all_members_have_left_it) {
  Job job(kOneHost, 2);
  job.run();
  for (int rank = 0; rank < 2; ++rank) job[rank].add_set({0, 1});
  job.run();
  for (int rank = 0; rank < 2; ++rank) job[rank].remove_set(1);
  job.run();
  EXPECT(*job.departures(1) == 2);
  for (int rank = 0; rank < 2; ++rank) job[rank].add_set({0, 1});
  job.run();
  const SetId again = {1, 3};
  EXPECT(job[0].sets.back() == again && job[1].sets.back() == again);
  for (int rank = 0; rank < 2; ++rank) job[rank].ask("x", 4, again);
  job.run();
  expect_all_did(job, {"x"});
  EXPECT(job[0].counters.agreed_in_memory == 1);
}

// --- endings ----------------------------------------------------------------------------------------------------------

TEST(a_verdict_fails_what_was_announced_in_memory_and_nothing_else) {
  Job job(kOneHost);
  job.run();
  job[0].ask("a");
  job[1].ask("b");
  job.run();
  job.verdict(0, {"a", "b"});
  for (int time = 0; time < 4; ++time) job.pass(0);  // it waits for what rank 1 had in memory
  job.run();
  EXPECT(job[0].failed["a"] == "these wait for each other");
  EXPECT(job[1].failed["b"] == "these wait for each other");
  const int before = messages(job);
  for (int rank = 0; rank < 2; ++rank) job[rank].ask("a");
  job.run();
  expect_all_did(job, {"a"});
  EXPECT(messages(job) == before);  // it is open again
}

// The ranks share no memory, so all goes by message.
TEST(a_verdict_on_what_has_ended_does_not_fail_the_next_operation_of_the_name) {
  Job job(kApart);
  for (int rank = 0; rank < 2; ++rank) job[rank].ask("x");
  job.run();
  job[1].ask("x");
  job.verdict(0, {"x"});
  job.run();
  job[0].ask("x");
  job.run();
  for (int rank = 0; rank < 2; ++rank) EXPECT(job[rank].failed.empty());
  expect_all_did(job, {"x", "x"});
}

// As where a rank held the removal of a set back until another operation had failed by the same verdict.
TEST(what_a_verdict_names_fails_though_the_last_member_asks_for_it_before) {
  Job job(kThree);
  job.run();
  for (const int rank : {1, 2}) job[rank].ask("x");
  job.run();
  job.verdict(0, {"x"});
  for (int time = 0; time < 4; ++time) job.pass(0);
  job[0].ask("x");
  job.run();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT(job[rank].failed["x"] == "these wait for each other");
    EXPECT(job[rank].did.empty());
  }
}

TEST(who_leaves_ends_what_needs_it_on_all_others) {
  Job job(kThree);
  job.run();
  for (const int rank : {0, 1}) job[rank].ask("x");
  job.run();
  job[2].leave();
  job.run();
  for (const int rank : {0, 1}) {
    EXPECT_HAS(job[rank].failed["x"], "allreduce of 'x' in process set 0: rank 2 has left");
    job[rank].ask("y");
  }
  job.run();
  for (const int rank : {0, 1}) EXPECT_HAS(job[rank].failed["y"], "rank 2 has left");
}

TEST(without_its_coordinator_a_set_agrees_on_nothing) {
  Job job(kThree);
  job.run();
  job[1].ask("x");
  job.run();
  job[0].leave();
  job.run();
  EXPECT_HAS(job[1].failed["x"], "rank 0 has left");
  job[2].ask("y");
  EXPECT_HAS(job[2].failed["y"], "allreduce of 'y' in process set 0: rank 0 has left");
}

TEST(what_a_leaving_rank_announced_may_still_be_decided) {
  Job job(kApart);
  job[1].ask("x");
  job.pass(1);
  job[0].ask("x");
  job[1].ask("not announced");
  const std::set<int> undecided = job[1].negotiation().leave({base::ErrorCode::kAborted, "left"});
  EXPECT(undecided == std::set<int>{0});
  EXPECT(job[1].failed.size() == 1 && job[1].failed.contains("not announced"));
  job.run();
  expect_all_did(job, {"x"});
}

TEST(what_is_decided_when_a_rank_leaves_and_was_not_sent_fails_on_all) {
  Job job(kOneHost);
  job.run();
  job[0].ask(allgather("g", 1));
  job.pass(0);
  job[1].ask(allgather("g", 2));
  job.pass(1);
  job.pass(0);
  while (!job[1].leave()) job.pass(1);
  job[0].trouble.allow = 0;  // another member holds the lock
  while (!job.wire(1, 0).empty()) job.deliver({1, 0});
  EXPECT(job[0].did.empty() && job[0].failed.empty());
  job[0].trouble.allow = Trouble::kAll;
  job.run();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT(job[rank].did.empty() && job[rank].failed.contains("g"));
  }
  EXPECT_HAS(job[0].failed["g"], "allgather of 'g' in process set 0: rank 1 has left");
}

RequestPtr member_of_group(const std::string& name, int place) {
  Request request = allgather(name, 1);
  request.group = "group";
  request.group_size = 2;
  request.group_index = place;
  request.seal();
  return std::make_shared<const Request>(std::move(request));
}

// The texts of all decisions that are not sent yet, in alphabetic order.
std::vector<std::string> failures_of(Coordinator& coordinator) {
  std::vector<std::string> failures;
  for (const Decision& decision : coordinator.collect()) {
    failures.push_back(decision.response->error.message);
  }
  std::ranges::sort(failures);
  return failures;
}

TEST(a_group_that_lacks_an_operation_when_a_rank_leaves_fails_with_the_kinds_that_were_asked) {
  Coordinator coordinator({0, 1}, {0, 1}, 16, false);
  for (const int member : {0, 1}) coordinator.announce(member, member_of_group("a", 0), 0);
  coordinator.announce(0, member_of_group("b", 1), 0);
  coordinator.leave({base::ErrorCode::kAborted, "rank 1 has left"});
  EXPECT(failures_of(coordinator) ==
         std::vector<std::string>({"allgather of 'a' in process set 0: rank 1 has left",
                                   "allgather of 'b' in process set 0: rank 1 has left"}));
}

TEST(a_verdict_on_one_operation_of_a_group_fails_those_that_some_members_have_not_asked_for) {
  Coordinator coordinator({0, 1}, {0, 1}, 16, false);
  coordinator.announce(0, member_of_group("a", 0), 0);
  coordinator.announce(0, member_of_group("b", 1), 0);
  coordinator.fail({"a"}, {base::ErrorCode::kTimeout, "deadlock"});
  EXPECT(failures_of(coordinator) == std::vector<std::string>({"deadlock", "deadlock"}));
  EXPECT(coordinator.open().empty());
}

TEST(what_a_failing_rank_announced_is_not_agreed_by_a_rank_that_comes_later) {
  Job job(kOneHost);
  job.run();
  job[1].ask("x");
  job.run();
  job[1].negotiation().abandon();
  job[1].negotiation().end_all({base::ErrorCode::kAborted, "it failed"});
  EXPECT(job[1].failed["x"] == "it failed");
  job.die(1);
  job[0].ask("x");
  job.run();
  EXPECT(job[0].did.empty() && job[0].negotiation().has_pending());
}

}  // namespace
}  // namespace hvdlite::engine::negotiation_test
