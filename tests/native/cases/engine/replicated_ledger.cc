// Agreement in copies of the ledger: jobs of Negotiations whose ranks share no memory. negotiation_explored.cc and
// negotiation_orders.cc step such jobs in every order.
#include "engine/negotiation/replicated_ledger.h"

#include "engine/negotiation_job.h"
#include "harness.h"

namespace hvdlite::engine::negotiation_test {
namespace {

struct CopiesJob : Job {
  explicit CopiesJob(std::vector<int> hosts) : Job(std::move(hosts), 2, /*ledger_copies=*/16) {}
  int sent() {
    int messages = 0;
    for (int rank = 0; rank < size(); ++rank) messages += (*this)[rank].sent;
    return messages;
  }
  void pass_all() {
    for (int rank = 0; rank < size(); ++rank) pass(rank);
  }
  void deliver_all() {
    for (const auto& wire : busy()) deliver(wire);
  }
};

TEST(one_message_to_each_other_rank_is_enough) {
  CopiesJob job(kThreeApart);
  for (int call = 1; call <= 5; ++call) {
    for (int rank = 0; rank < 3; ++rank) job[rank].ask("x");
    job.pass_all();
    EXPECT(job[0].did.size() + 1 == static_cast<std::size_t>(call));  // nothing has arrived yet
    job.deliver_all();  // one message of each rank to each other
    job.pass_all();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT(job[rank].did.size() == static_cast<std::size_t>(call));
      EXPECT(job[rank].counters.agreed_in_memory == call);
    }
    EXPECT(job.busy().empty() && job.sent() == 6 * call);
  }
}

TEST(a_late_rank_needs_no_answer) {
  CopiesJob job(kApart);
  for (int call = 0; call < 3; ++call) {
    job[0].ask("x");
    job.run();
    job[1].ask("x");
    job.pass(1);
    EXPECT(job[1].did.size() == static_cast<std::size_t>(call) + 1);  // all it needs is here
    job.run();
    EXPECT(job[0].did.size() == static_cast<std::size_t>(call) + 1 && job[0].last == 1);
  }
  EXPECT(job.sent() == 6);
}

TEST(a_rank_that_has_nothing_to_ask_for_is_silent) {
  CopiesJob job(kThreeApart);
  job[0].ask("x");
  job[1].ask("x");
  job.run();
  EXPECT(job[2].sent == 0 && job[0].did.empty());
}

TEST(ranks_that_ask_in_messages_of_other_stamps_acknowledge) {
  CopiesJob job(kApart);
  for (const char* name : {"a", "b"}) {
    job[0].ask(name);
    job.run();
  }
  for (const char* name : {"b", "a"}) {
    job[1].ask(name);
    job.run();
  }
  for (int rank = 0; rank < 2; ++rank) EXPECT(job[rank].did == Did({"b", "a"}));
  EXPECT(job[0].sent == 3 &&
         job[1].sent == 2);  // two announcements each, and an acknowledgement of the last one
}

TEST(what_one_message_completes_is_fused_alike) {
  CopiesJob job(kApart);
  for (const char* name : {"a", "b"}) {
    job[0].ask(name);
    job.run();
  }
  job[1].ask("b");
  job[1].ask("a");
  job.run();
  for (int rank = 0; rank < 2; ++rank) EXPECT(job[rank].did == Did({"b+a"}));
}

TEST(a_small_payload_travels_with_its_announcement) {
  CopiesJob job(kThreeApart);
  for (int rank = 0; rank < 3; ++rank) {
    job[rank].prepares = true;
    job[rank].ask("x");
  }
  job.run();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT(job[rank].did == Did({"x!"}) && job[rank].payloads.size() == 3);
    for (int member = 0; member < 3; ++member) {
      const std::vector<std::byte> input(16, static_cast<std::byte>(member));
      EXPECT(job[rank].payloads[member] == input);
    }
  }
}

TEST(each_member_gets_its_part_of_each_payload) {
  CopiesJob job(kThreeApart);
  for (int rank = 0; rank < 3; ++rank) {
    job[rank].prepares = true;
    job[rank].parts = {8, 0, 4};
    job[rank].ask("x", 3);
  }
  job.run();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT(job[rank].did == Did({"x!"}) && job[rank].payloads.size() == 3);
    for (int member = 0; member < 3; ++member) {
      const std::vector<std::byte> part(job[rank].parts[rank], static_cast<std::byte>(member));
      EXPECT(job[rank].payloads[member] == part);
    }
  }
}

TEST(a_group_has_one_payload) {
  CopiesJob job(kApart);
  for (int rank = 0; rank < 2; ++rank) {
    job[rank].prepares = true;
    job[rank].ask_group("g", {"b", "a"});
  }
  job.run();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT(job[rank].did == Did({"b+a!"}));
    for (int member = 0; member < 2; ++member) {
      EXPECT(job[rank].payloads[member] ==
             std::vector<std::byte>(32, static_cast<std::byte>(member)));
    }
  }
}

TEST(each_group_has_a_message_of_its_own_and_a_late_rank_needs_no_answer) {
  CopiesJob job(kApart);
  for (int rank = 0; rank < 2; ++rank) {
    job[rank].prepares = true;
    job[rank].ask_group("g", {"a", "b"});
    for (const char* name : {"c", "d"}) job[rank].ask(name);
    job[rank].ask_group("h", {"e", "f"});
    job.pass(rank);
    while (!job.busy().empty()) job.deliver_all();
  }
  EXPECT(job[1].did == Did({"c+d", "a+b!", "e+f!"}));  // all it needs came before it asked
  job.run();
  EXPECT(job[0].did == job[1].did && job.sent() == 6);
}

TEST(a_group_that_takes_several_operations_has_no_payload) {
  CopiesJob job(kApart);
  for (int rank = 0; rank < 2; ++rank) {
    job[rank].prepares = true;
    for (const int place : {0, 1}) {
      Request request = allreduce(place == 0 ? "a" : "b");
      request.group = "g";
      request.group_size = 2;
      request.group_index = place;
      request.op = place == 0 ? base::ReduceOp::kSum : base::ReduceOp::kMax;
      job[rank].ask(std::move(request));
    }
  }
  job.run();
  for (int rank = 0; rank < 2; ++rank) EXPECT(job[rank].did == Did({"a", "b"}));
}

TEST(a_payload_travels_while_an_earlier_operation_waits) {
  CopiesJob job(kApart);
  for (const char* name : {"x", "y"}) {
    for (int rank = 0; rank < 2; ++rank) job[rank].prepares = true;
    job[0].ask(name);
    job.run();
  }
  for (const char* name : {"x", "y"}) {
    job[1].ask(name);
    job.pass(1);
  }
  job.run();
  for (int rank = 0; rank < 2; ++rank) EXPECT(job[rank].did == Did({"x!", "y!"}));
}

TEST(a_payload_is_unused_if_one_rank_has_none) {
  CopiesJob job(kApart);
  job[0].prepares = true;
  job[0].ask("x");
  job[1].ask("x");
  job.run();
  for (int rank = 0; rank < 2; ++rank) EXPECT(job[rank].did == Did({"x"}));
}

TEST(what_the_coordinator_decides_has_one_place_among_the_agreements) {
  CopiesJob job(kThreeApart);
  for (int rank = 0; rank < 3; ++rank) {
    job[rank].ask("x", rank == 1 ? 5 : 4);  // a mismatch
    job[rank].ask("y");
  }
  job.run();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT(job[rank].did == Did({"y"}));
    EXPECT_HAS(job[rank].failed["x"], "shape");
    job[rank].ask("x");
  }
  job.run();
  for (int rank = 0; rank < 3; ++rank) EXPECT(job[rank].did == Did({"y", "x"}));
}

// The list has arrived, but this rank has made no pass since. So the list is not carried out yet when the coordinator says that it
// decides nothing more.
TEST(a_rank_that_leaves_carries_out_the_last_list) {
  CopiesJob job(kApart);
  for (int rank = 0; rank < 2; ++rank) job[rank].ask(allgather("x", 4 + rank));
  job.run();  // from now on the coordinator decides it
  const CompletionPtr x = job[1].ask(allgather("x", 5));
  job.run();
  while (!job[1].leave()) job.run();
  job[0].ask(allgather("x", 4));
  job.pass(0);  // decides: the Goodbye of rank 1 has not arrived
  while (!job.busy().empty()) job.deliver(job.busy().front());
  job.pass(1);
  EXPECT(x->is_done() && job[1].failed.empty() && job[1].did == Did({"x(4,5)", "x(4,5)"}) &&
         job[0].did == job[1].did);
}

// Member 2 announces key 7 before it has read that the key was diverted. Meanwhile the coordinator decides it, so the announcement
// comes after the decision. It is void: nothing of it may be left when the key comes again.
TEST(an_announcement_that_crossed_a_decision_is_void) {
  ReplicatedLedger ledger({0, 1}, 3, 1, [](int, const LedgerSteps&) {});
  const auto announce = [&](std::uint64_t key, std::uint64_t content) {
    while (ledger.has_news()) ledger.pop();
    std::vector<Agreement::Unit> units = {{.key = key, .content = content}};
    ledger.try_announce(units);
  };
  ledger.hear(0, {.stamp = 1, .steps = {{.key = 7, .content = 1}}});
  ledger.hear(2, {.stamp = 1});
  announce(7, 2);  // a mismatch
  EXPECT(ledger.has_news() && ledger.front().kind == Agreement::Kind::kDiverted);
  ledger.hear(0, {.stamp = 2,
                  .exceptions = 1,
                  .steps = {{.kind = LedgerSteps::Kind::kList, .key = 1, .keys = {7}}}});
  ledger.hear(2, {.stamp = 2, .steps = {{.key = 7, .content = 1}}});
  announce(8, 1);
  ledger.hear(0, {.stamp = 3, .exceptions = 2, .steps = {{.key = 7, .content = 3}}});
  ledger.hear(2, {.stamp = 3, .exceptions = 2, .steps = {{.key = 7, .content = 3}}});
  announce(7, 3);
  EXPECT(ledger.has_news() && ledger.front().kind == Agreement::Kind::kComplete);
}

// --- bad messages -----------------------------------------------------------------------------------------------------

std::string refused(const std::vector<std::pair<int, LedgerSteps>>& messages) {
  ReplicatedLedger ledger({0, 1}, 3, 0, [](int, const LedgerSteps&) {});
  try {
    for (const auto& [member, message] : messages) ledger.hear(member, message);
  } catch (const base::Error& error) {
    EXPECT(error.code() == base::ErrorCode::kInternal);
    return error.what();
  }
  return "";
}

TEST(steps_that_no_correct_member_makes_are_refused) {
  using Step = LedgerSteps::Step;
  using Kind = LedgerSteps::Kind;
  const auto steps = [](std::uint64_t stamp, std::vector<Step> made) {
    return LedgerSteps{.stamp = stamp, .steps = std::move(made)};
  };
  EXPECT_HAS(refused({{1, steps(2, {})}, {1, steps(2, {})}}), "out of their order");
  EXPECT_HAS(refused({{1, steps(1, {{.kind = Kind::kList, .key = 1}})}}), "only the coordinator");
  EXPECT_HAS(refused({{0, steps(1, {})}}), "has left");
}

TEST(a_member_that_announces_twice_is_refused) {
  ReplicatedLedger ledger({0, 1}, 2, 0, [](int, const LedgerSteps&) {});
  for (const std::uint64_t stamp : {1, 2}) {
    ledger.hear(1, {.stamp = stamp, .steps = {{.key = 7}}});
  }
  std::vector<Agreement::Unit> units = {{.key = 9}};
  std::string why;
  try {
    ledger.try_announce(units);
  } catch (const base::Error& error) {
    why = error.what();
  }
  EXPECT_HAS(why, "member 1 of process set 0 announces an operation twice");
}

}  // namespace
}  // namespace hvdlite::engine::negotiation_test
