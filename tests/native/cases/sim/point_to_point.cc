// What two ranks send one another, in whole jobs: it completes in any order, waits for no collective, and what never completes is
// told in time, with the names.
#include <algorithm>
#include <functional>

#include "harness.h"
#include "sim/job.h"

namespace hvdlite::sim::point_to_point_test {
namespace {

using base::ErrorCode;
using engine::kAny;

constexpr std::int64_t kSmall = 4, kLarge = 20'000;
constexpr double kPromised = 2.0;

engine::Request request_of(Rank& rank, base::OpKind kind, int peer, std::int64_t count, int tag,
                           std::int32_t set) {
  engine::Request request;
  request.set = set == 0 ? base::SetId{0, 1} : rank.shared().sets.find(set)->id;
  request.kind = kind;
  request.root = peer;
  request.tag = tag;
  request.name = std::string(base::name_of(kind)) + ".t" + std::to_string(rank.operations().size());
  request.shape = {count};
  return request;
}

// All its elements are the value.
Operation& send(Rank& rank, int to, float value, std::int64_t count = kSmall, int tag = 0,
                std::int32_t set = 0) {
  Operation& sending = rank.start(request_of(rank, base::OpKind::kSend, to, count, tag, set));
  std::ranges::fill(sending.input, value);
  return sending;
}
Operation& recv(Rank& rank, int from, std::int64_t count = kSmall, int tag = 0,
                std::int32_t set = 0) {
  return rank.start(request_of(rank, base::OpKind::kRecv, from, count, tag, set));
}

bool got(const Operation& operation, float value) {
  return std::ranges::all_of(operation.output, [&](float each) { return each == value; });
}

const std::vector<Shape> kShapes = {one_host(3),
                                    {.hosts = {0, 0, 0}, .mail_bytes = 64},
                                    {.hosts = {0, 0, 0}, .shared_memory = false},
                                    {.hosts = {0, 0, 1}},
                                    {.hosts = {0, 1, 2}}};

TEST(all_to_all_at_once_in_any_order_and_to_oneself) {
  for (const Shape& shape : kShapes) {
    Job job(shape, usual());
    job.begin([&](Rank& rank) -> Program {
      const int me = rank.number(), size = rank.size();
      for (const std::int64_t count : {std::int64_t{0}, kSmall, kLarge}) {
        std::vector<std::pair<Operation*, int>> receives;
        std::vector<Operation*> sends;
        const auto receive_all = [&] {
          for (int from = 0; from < size; ++from)
            receives.emplace_back(&recv(rank, from, count), from);
        };
        if (me != 1) receive_all();
        for (int to = 0; to < size; ++to) {
          sends.push_back(&send(rank, to, static_cast<float>(10 * me + to), count));
        }
        if (me == 1) receive_all();
        for (auto& [receive, from] : receives) {
          EXPECT((co_await rank.wait(*receive)).ok());
          EXPECT(got(*receive, static_cast<float>(10 * from + me)));
          EXPECT(receive->completion->value == from);
        }
        for (Operation* each : sends) EXPECT((co_await rank.wait(*each)).ok());
      }
    });
    job.run(60);
  }
}

// A megabyte of small ones may wait; then their sender does.
TEST(a_flood_of_small_messages_waits_for_its_receiver) {
  for (const Shape& shape : kShapes) {
    Job job(shape, usual());
    job.begin([&](Rank& rank) -> Program {
      constexpr std::int64_t kElements = 2000;
      constexpr int kMessages = 200;
      if (rank.number() == 0) {
        std::vector<Operation*> sent;
        for (int i = 0; i < kMessages; ++i) {
          sent.push_back(&send(rank, 1, static_cast<float>(i), kElements));
        }
        EXPECT((co_await rank.wait(*sent[100])).ok());
        co_await rank.compute(0.5);
        EXPECT(!sent[140]->ended());
        EXPECT((co_await rank.barrier()).ok());
        for (Operation* each : sent) EXPECT((co_await rank.wait(*each)).ok());
      } else {
        EXPECT((co_await rank.barrier()).ok());
        for (int i = 0; rank.number() == 1 && i < kMessages; ++i) {
          Operation& received = recv(rank, 0, kElements);
          EXPECT((co_await rank.wait(received)).ok());
          EXPECT(got(received, static_cast<float>(i)));
        }
      }
    });
    job.run(60);
  }
}

TEST(it_waits_for_no_collective_and_none_for_it) {
  for (const Shape& shape : kShapes) {
    Job job(shape, usual());
    job.begin([&](Rank& rank) -> Program {
      if (rank.number() == 0) {
        Operation& early = recv(rank, 1, kLarge);
        Operation& sum = rank.start("sum");
        EXPECT((co_await rank.wait(sum)).ok());  // nothing has been sent yet
        EXPECT(!early.ended());
        Operation& later = rank.start("later");
        EXPECT((co_await rank.wait(early)).ok());  // rank 2 has not asked for `later` yet
        EXPECT(got(early, 7) && !later.ended());
        EXPECT((co_await rank.wait(send(rank, 2, 1))).ok());
        EXPECT((co_await rank.wait(later)).ok());
      } else {
        EXPECT((co_await rank.allreduce("sum")).ok());
        if (rank.number() == 1) EXPECT((co_await rank.wait(send(rank, 0, 7, kLarge))).ok());
        if (rank.number() == 2) EXPECT((co_await rank.wait(recv(rank, 0))).ok());
        EXPECT((co_await rank.allreduce("later")).ok());
      }
    });
    job.run(60);
  }
}

TEST(sets_are_apart_and_one_is_removed_when_all_was_received) {
  for (const Shape& shape : kShapes) {
    Job job(shape, usual());
    job.begin([&](Rank& rank) -> Program {
      const std::vector<std::int64_t> pair = {0, 2};
      EXPECT((co_await rank.add_set(pair)).ok());
      if (rank.number() == 0) {
        Operation& world = send(rank, 2, 1);
        Operation& in_set = send(rank, 2, 2, kLarge, 0, 1);
        EXPECT((co_await rank.wait(world)).ok() && (co_await rank.wait(in_set)).ok());
      }
      if (rank.number() == 2) {
        Operation& in_set = recv(rank, 0, kLarge, 0, 1);
        Operation& world = recv(rank, kAny, kSmall, kAny);
        EXPECT((co_await rank.wait(in_set)).ok() && (co_await rank.wait(world)).ok());
        EXPECT(got(in_set, 2) && got(world, 1));
      }
      engine::Request removal;
      removal.set = {0, 1};
      removal.kind = base::OpKind::kRemoveProcessSet;
      removal.root = 1;
      removal.name = "remove";
      EXPECT((co_await rank.wait(rank.start(removal))).ok());
    });
    job.run(60);
  }
}

// --- what never completes ---------------------------------------------------------------------------------------------

// Each rank starts what `begin` does and waits for it: it fails in time, with these parts in its text.
void expect_deadlock(const Shape& shape, const std::vector<std::string>& parts,
                     const std::function<Operation&(Rank&)>& begin) {
  Job job(shape, usual());
  job.begin([&](Rank& rank) -> Program {
    EXPECT((co_await rank.barrier()).ok());
    const Time begun = job.now();
    Operation& mine = begin(rank);
    const base::Status status = co_await rank.wait(mine);
    EXPECT_OR(status.code == ErrorCode::kTimeout, status.message);
    EXPECT(job.seconds_since(begun) <= kPromised);
    for (const std::string& part : parts) EXPECT_HAS(status.message, part);
    // The engine goes on, and what was given up is not found by a later receive.
    const int left = (rank.number() + rank.size() - 1) % rank.size();
    Operation& after = send(rank, (rank.number() + 1) % rank.size(), 3, kLarge);
    Operation& received = recv(rank, left, kLarge);
    EXPECT((co_await rank.wait(after)).ok() && (co_await rank.wait(received)).ok());
    EXPECT(got(received, 3));
  });
  job.run(60);
}

TEST(large_sends_in_a_ring_are_found_and_small_ones_complete) {
  for (const Shape& shape : kShapes) {
    expect_deadlock(
        shape,
        {"rank 0 waits for send of 't1' to rank 1 (tag 0) in process set 0, missing on "
         "rank 1",
         "rank 1 waits for", "rank 2 waits for", "isend and irecv"},
        [](Rank& rank) -> Operation& { return send(rank, (rank.number() + 1) % 3, 1, kLarge); });
    Job job(shape, usual());
    job.begin([&](Rank& rank) -> Program {
      const int me = rank.number();
      EXPECT((co_await rank.wait(send(rank, (me + 1) % 3, static_cast<float>(me)))).ok());
      Operation& received = recv(rank, (me + 2) % 3);
      EXPECT((co_await rank.wait(received)).ok());
      EXPECT(got(received, static_cast<float>((me + 2) % 3)));
    });
    job.run(60);
  }
}

TEST(a_rank_alone_that_does_not_receive_what_it_sends_itself_is_told) {
  expect_deadlock(one_host(1), {"rank 0 waits for send of 't1' to rank 0 (tag 0)"},
                  [](Rank& rank) -> Operation& { return send(rank, 0, 1, kLarge); });
  expect_deadlock(one_host(1), {"rank 0 waits for recv of 't1' from rank 0 (tag 0)"},
                  [](Rank& rank) -> Operation& { return recv(rank, 0); });
}

TEST(receives_that_nobody_sends_for_are_found) {
  for (const Shape& shape : kShapes) {
    expect_deadlock(shape, {"rank 0 waits for recv of 't1' from rank 1 (tag 0)"},
                    [](Rank& rank) -> Operation& { return recv(rank, (rank.number() + 1) % 3); });
    expect_deadlock(shape, {"rank 1 waits for recv of 't1' from any rank (any tag)"},
                    [](Rank& rank) -> Operation& { return recv(rank, kAny, kSmall, kAny); });
    // A collective that needs a rank which receives.
    expect_deadlock(shape, {"rank 0 waits for recv", "allreduce of 'sum'", "rank 2"},
                    [](Rank& rank) -> Operation& {
                      return rank.number() == 0 ? recv(rank, 1) : rank.start("sum");
                    });
  }
}

TEST(a_receive_from_any_rank_waits_for_one_that_computes) {
  for (const Shape& shape : kShapes) {
    Job job(shape, usual());
    job.begin([&](Rank& rank) -> Program {
      if (rank.number() == 2) {
        co_await rank.compute(50);
        for (const int to : {0, 1}) EXPECT((co_await rank.wait(send(rank, to, 5))).ok());
      } else {
        Operation& received = recv(rank, kAny);
        EXPECT((co_await rank.wait(received)).ok());
        EXPECT(got(received, 5));
      }
    });
    job.run(60);
  }
}

TEST(a_stall_names_the_rank_that_it_waits_for) {
  for (const Shape& shape : kShapes) {
    base::Config config = usual();
    config.stall_check_time_seconds = 1;
    Job job(shape, config);
    job.begin([&](Rank& rank) -> Program {
      if (rank.number() == 1) co_await rank.compute(5);
      if (rank.number() == 0) EXPECT((co_await rank.wait(send(rank, 1, 1, kLarge))).ok());
      if (rank.number() == 1) EXPECT((co_await rank.wait(recv(rank, 0, kLarge))).ok());
      if (rank.number() == 2) co_await rank.compute(5);
    });
    job.run(60);
    const auto said = job.log().lines("WARN");
    EXPECT_OR(said.size() == 1, job.log().text());
    EXPECT_HAS(said[0], "send of 't0' to rank 1 (tag 0) in process set 0");
    EXPECT_HAS(said[0], "for rank 1");
  }
}

// --- how ranks end ----------------------------------------------------------------------------------------------------

TEST(who_needs_a_rank_that_leaves_is_told_and_what_it_had_sent_arrives) {
  for (const Shape& shape : kShapes) {
    Job job(shape, usual());
    job.begin([&](Rank& rank) -> Program {
      if (rank.number() == 1) {
        EXPECT((co_await rank.wait(send(rank, 0, 4))).ok());
        co_await rank.leave();
      } else if (rank.number() == 0) {
        co_await rank.compute(3);
        Operation& sent = recv(rank, 1);
        EXPECT((co_await rank.wait(sent)).ok() && got(sent, 4));
        for (Operation* each : {&recv(rank, 1), &send(rank, 1, 1, kLarge), &send(rank, 1, 1)}) {
          const base::Status status = co_await rank.wait(*each);
          EXPECT(status.code == ErrorCode::kAborted);
          EXPECT_HAS(status.message, "rank 1 (tag 0) in process set 0: ");
        }
        EXPECT((co_await rank.wait(send(rank, 2, 6, kLarge))).ok());
      } else {
        Operation& received = recv(rank, kAny, kLarge);
        EXPECT((co_await rank.wait(received)).ok() && got(received, 6));
      }
    });
    job.run(60);
  }
}

TEST(who_leaves_does_not_wait_until_all_was_received) {
  for (const Shape& shape : kShapes) {
    Job job(shape, usual());
    job.begin([&](Rank& rank) -> Program {
      if (rank.number() != 0) {
        co_await rank.compute(5);
        co_return;
      }
      for (int i = 0; i < 50; ++i) EXPECT((co_await rank.wait(send(rank, 1, 1, 2000))).ok());
      const Time begun = job.now();
      co_await rank.leave();
      EXPECT(job.seconds_since(begun) < 1);
    });
    job.run(60);
  }
}

// More turns than the exchange takes.
constexpr std::uint64_t kMoments = 60;

// The other gets all of what was sent, or an error that names the dead.
TEST(a_rank_that_dies_at_any_moment_is_named) {
  for (const Shape& shape : {one_host(2), Shape{.hosts = {0, 0}, .shared_memory = false}}) {
    for (std::uint64_t moment = 0; moment < kMoments; ++moment) {
      base::Config config = usual();
      config.log_level = base::LogLevel::kOff;
      Job job(shape, config);
      job.begin([&](Rank& rank) -> Program {
        const int other = 1 - rank.number();
        Operation& sent = send(rank, other, 8, kLarge);
        Operation& received = recv(rank, other, kLarge);
        Operation& never = recv(rank, other, kSmall, 1);
        const base::Status status = co_await rank.wait(received);
        EXPECT(!status.ok() || got(received, 8));
        co_await rank.wait(sent);
        EXPECT_HAS((co_await rank.wait(never)).message, "rank 1");
      });
      job.at_turn(moment, [&] { job.rank(1).die(); });
      job.run(60);
      EXPECT(job.rank(1).dead());
    }
  }
}

}  // namespace
}  // namespace hvdlite::sim::point_to_point_test
