// The ranks of a job without engines, in init() and at the end: who comes, who does not, and what the others are told. Each rank has
// its real Job; the time is the test's own, and deaths, stops and cut links come at every moment. (Over 400 lines, because all
// cases step the same Meeting.)
#include <algorithm>
#include <random>
#include <set>

#include "base/wire.h"
#include "harness.h"
#include "job/job.h"
#include "no_memory.h"
#include "sim/network.h"

namespace hvdlite::sim::jobs_test {
namespace {

using base::ErrorCode;
using job::Bytes;

Bytes value_of(int rank, std::size_t round = 0) {
  return Bytes(static_cast<std::size_t>(rank) * 3000 + round, static_cast<std::byte>(rank + 1));
}

class Meeting {
 public:
  // hosts: the number of each rank's host.
  explicit Meeting(const std::vector<int>& hosts, job::Job::Limits limits = {0, 10},
                   std::uint64_t seed = 0)
      : limits_(limits), draw_(seed) {
    const auto size = static_cast<int>(hosts.size());
    fabric_ = transport::make_fabric({size, hosts, 0, 0});
    network_.nodes.resize(hosts.size());
    for (std::size_t place = 0; place < hosts.size(); ++place) {
      network_.nodes[place].host = hosts[place];
    }
    network_.cut.resize(hosts.size());
    ranks_.resize(hosts.size());
    for (int number = 0; number < size; ++number) enter(number);
  }

  struct Rank {
    std::unique_ptr<job::Job> job;
    std::vector<Bytes> values;  // of the last exchange that has ended
    int exchanges = 0;          // that have ended
    base::Status failure;       // of the one under way
    bool under_way = true;
    bool stopped = false;
    base::Clock::time_point ended;
  };
  Rank& operator[](int number) { return ranks_[static_cast<std::size_t>(number)]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  Network& network() { return network_; }

  void die(int number) { network_.node(number).dead = true; }
  void begin(int number, Bytes mine, bool bounded = true) {
    (*this)[number].under_way = true;
    (*this)[number].job->begin(std::move(mine), bounded);
  }
  void begin_all(bool bounded) {
    for (int number = 0; number < size(); ++number) begin(number, value_of(number), bounded);
  }

  // One rank looks.
  void look(int number) {
    Rank& rank = (*this)[number];
    if (network_.node(number).dead || rank.stopped || rank.failure.code != ErrorCode::kOk) return;
    if (!rank.under_way) {
      rank.job->look();
      return;
    }
    try {
      if (!rank.job->pass()) return;
    } catch (const base::Error& error) {
      rank.failure = {error.code(), error.what()};
      rank.ended = time_.now();
      return;
    }
    rank.values = rank.job->values();
    rank.under_way = false;
    if (rank.exchanges++ == 0) rank.job->set_limits(limits_);
  }
  // All look, in an order that is drawn, and the time goes on by 10 ms.
  void look_all() {
    std::vector<int> order(ranks_.size());
    for (int number = 0; number < size(); ++number)
      order[static_cast<std::size_t>(number)] = number;
    std::shuffle(order.begin(), order.end(), draw_);
    for (const int number : order) look(number);
    time_.step(std::chrono::milliseconds(10));
  }
  void run(double seconds) {
    const auto end = time_.now() + base::from_seconds(seconds);
    while (time_.now() < end && !all_done()) look_all();
  }
  bool done(int number) {
    const Rank& rank = (*this)[number];
    return network_.node(number).dead || !rank.under_way || rank.failure.code != ErrorCode::kOk;
  }
  bool all_done() {
    for (int number = 0; number < size(); ++number) {
      if (!done(number) && !(*this)[number].stopped) return false;
    }
    return true;
  }
  double now() const { return base::seconds_between({}, time_.now()); }
  void pass_time(double seconds) {
    for (const double end = now() + seconds; now() < end;) look_all();
  }

 private:
  class Neighbours final : public job::Neighbours {
   public:
    Neighbours(Meeting& meeting, std::vector<int> pids)
        : meeting_(meeting), pids_(std::move(pids)) {}
    bool has_ended(int rank) override { return here(rank) && meeting_.network_.node(rank).dead; }
    bool is_stopped(int rank) override { return here(rank) && meeting_[rank].stopped; }
    void kill(int rank) override { meeting_.die(rank); }

   private:
    bool here(int rank) const { return pids_[static_cast<std::size_t>(rank)] != 0; }
    Meeting& meeting_;
    std::vector<int> pids_;
  };

  void enter(int number) {
    const std::string host = "h" + std::to_string(network_.node(number).host);
    const job::Card card = {host, 100 + number, host, true};
    (*this)[number].job = std::make_unique<job::Job>(
        std::make_unique<Endpoint>(transport::connect(fabric_, number, false), network_),
        base::TimeSource(time_), card,
        [this](const std::vector<int>& pids) { return std::make_unique<Neighbours>(*this, pids); });
  }

  job::Job::Limits limits_;
  std::mt19937_64 draw_;
  base::ManualTime time_;
  std::shared_ptr<transport::Fabric> fabric_;
  Network network_;
  std::vector<Rank> ranks_;
};

const std::vector<int> kTwoHosts = {0, 0, 1, 1};

TEST(values_of_all_sizes_reach_all_whatever_the_order) {
  for (int size = 1; size <= 9; ++size) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      Meeting meeting(std::vector<int>(static_cast<std::size_t>(size), 0), {}, seed);
      meeting.run(10);
      for (int number = 0; number < size; ++number) {
        EXPECT(meeting[number].exchanges == 1);
        meeting.begin(number, value_of(number));
      }
      meeting.run(10);
      for (int number = 0; number < size; ++number) {
        EXPECT(meeting[number].exchanges == 2);
        for (int other = 0; other < size; ++other) {
          EXPECT(meeting[number].values[static_cast<std::size_t>(other)] == value_of(other));
        }
      }
    }
  }
}

// A rank may be an exchange ahead of another.
TEST(exchanges_that_follow_each_other_do_not_mix) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Meeting meeting({0, 0, 0, 0, 0}, {}, seed);
    for (int turn = 0; turn < 400; ++turn) {
      meeting.look_all();
      for (int number = 0; number < 5; ++number) {
        Meeting::Rank& rank = meeting[number];
        if (rank.under_way) continue;
        for (int other = 0; rank.exchanges > 1 && other < 5; ++other) {
          EXPECT(rank.values[static_cast<std::size_t>(other)] ==
                 value_of(other, static_cast<std::size_t>(rank.exchanges - 1)));
        }
        if (rank.exchanges < 10) {
          meeting.begin(number, value_of(number, static_cast<std::size_t>(rank.exchanges)));
        }
      }
    }
    for (int number = 0; number < 5; ++number) EXPECT(meeting[number].exchanges == 10);
  }
}

// The survivors have either got all values or are told who is lost; nobody waits.
TEST(a_death_at_any_moment_ends_the_wait) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    for (int moment = 0; moment < 12; ++moment) {
      Meeting meeting(kTwoHosts, {0, 10}, seed);
      meeting.run(10);
      meeting.begin_all(false);
      for (int step = 0; step < moment; ++step) meeting.look(step % 4);
      meeting.die(1);
      meeting.run(60);
      for (const int number : {0, 2, 3}) {
        Meeting::Rank& rank = meeting[number];
        EXPECT(meeting.done(number));
        if (!rank.under_way) continue;
        EXPECT(rank.failure.code == ErrorCode::kPeerLost);
        EXPECT_HAS(rank.failure.message,
                   "rank 1 (host h0, pid 101) ended without telling the other ranks");
        EXPECT_HAS(rank.failure.message, "Horovod has been shut down");
      }
      // It has not sent its second part, which is for rank 3.
      if (moment == 0) EXPECT(meeting[3].under_way);
    }
  }
}

// The kernel tells of its end before the last message that it sent is there.
TEST(who_ends_after_its_part_is_not_accused) {
  Meeting meeting({0, 0});
  meeting.run(10);
  meeting.begin(0, value_of(0));
  meeting.die(1);
  meeting.look_all();
  meeting.begin(1, value_of(1));
  meeting.run(10);
  EXPECT(!meeting[0].under_way && meeting[0].values[1] == value_of(1));
}

TEST(last_words_that_come_after_the_end_are_the_cause) {
  Meeting meeting({0, 0});
  meeting.run(10);
  meeting.begin(0, value_of(0));
  meeting.die(1);
  meeting.look_all();
  meeting[1].job->tell("raised ValueError: bad batch 17");
  meeting.run(10);
  EXPECT_HAS(meeting[0].failure.message, "raised ValueError: bad batch 17");
}

TEST(last_words_reach_all_that_wait) {
  Meeting meeting(kTwoHosts);
  meeting.run(10);
  for (const int number : {0, 1, 3}) meeting.begin(number, value_of(number));
  EXPECT(meeting[2].job->tell("raised ValueError: bad batch 17") ==
         "rank 2 (host h1, pid 102) raised ValueError: bad batch 17. Horovod has been shut down");
  meeting.die(2);
  meeting.run(10);
  for (const int number : {0, 1, 3}) {
    EXPECT(meeting[number].failure.code == ErrorCode::kPeerLost);
    EXPECT(meeting[number].failure.message ==
           "rank 2 (host h1, pid 102) raised ValueError: bad batch 17. Horovod has been shut down");
  }
}

// Before the ranks know each other's names, too.
TEST(last_words_reach_those_that_meet) {
  Meeting meeting({0, 0, 0});
  meeting[2].job->tell("has left during init(): its program ended");
  meeting.die(2);
  for (const int number : {0, 1}) {
    meeting.look(number);
    EXPECT_HAS(meeting[number].failure.message, "rank 2 has left during init()");
  }
}

TEST(patience_for_the_stopped_ends) {
  for (const bool bounded : {true, false}) {
    Meeting meeting(kTwoHosts, {3, 0});
    meeting.run(10);
    meeting[1].stopped = true;
    const double began = meeting.now();
    for (const int number : {0, 2, 3}) meeting.begin(number, value_of(number), bounded);
    meeting.run(60);
    EXPECT_HAS(meeting[0].failure.message,
               "gave up after HVDLITE_STALL_SHUTDOWN_TIME_SECONDS (3 s), waiting for rank 1 (host "
               "h0, pid 101) (stopped by SIGSTOP, SIGTSTP or a debugger)");
    EXPECT(meeting[0].failure.code == ErrorCode::kTimeout);
    const double waited = base::seconds_between({}, meeting[0].ended) - began;
    EXPECT_OR(waited > 3 && waited < 3.1, std::to_string(waited));
    for (const int number : {2, 3}) EXPECT(meeting[number].failure.code != ErrorCode::kOk);
    meeting[0].job->kill_the_stopped();
    EXPECT(meeting.network().node(1).dead);
  }
}

// In init() all must come; at the end a rank may train on for as long as it likes.
TEST(only_a_bounded_exchange_loses_patience_with_the_slow) {
  for (const bool bounded : {true, false}) {
    Meeting meeting({0, 0}, {30, 0});
    meeting.run(10);
    meeting.begin(0, value_of(0), bounded);
    meeting.pass_time(600);
    EXPECT(meeting.done(0) == bounded);
    if (bounded) {
      EXPECT_HAS(meeting[0].failure.message, "waiting for other ranks");
      continue;
    }
    meeting.begin(1, value_of(1), bounded);
    meeting.run(10);
    EXPECT(!meeting[0].under_way && !meeting[1].under_way);
  }
}

TEST(hosts_that_have_nothing_to_say_hear_each_other) {
  Meeting meeting(kTwoHosts, {0, 10});
  meeting.run(10);
  meeting.begin(0, value_of(0), false);
  meeting.pass_time(600);
  for (int number = 0; number < 4; ++number) EXPECT(meeting[number].failure.code == ErrorCode::kOk);
}

TEST(a_host_that_is_cut_off_is_lost_after_the_timeout) {
  Meeting meeting(kTwoHosts, {0, 10});
  meeting.run(10);
  for (const int number : {0, 1, 2}) meeting.begin(number, value_of(number), false);
  meeting.pass_time(1);
  const double cut = meeting.now();
  meeting.network().cut[1] = true;
  meeting.run(60);
  for (const int number : {0, 1}) {
    EXPECT_HAS(
        meeting[number].failure.message,
        "rank 0 (host h0, pid 100) has heard nothing for 10 s (HVDLITE_PEER_TIMEOUT) from "
        "the host of rank 2 (host h1, pid 102), rank 3 (host h1, pid 103): the host is down");
  }
  const double silent = base::seconds_between({}, meeting[0].ended) - cut;
  EXPECT_OR(silent > 7.9 && silent < 10.1, std::to_string(silent));
}

// MPI refuses the heartbeat in the very look that finds the other host silent.
TEST(a_silent_host_is_lost_although_the_heartbeat_is_refused) {
  for (int moment = 0; moment < 200; ++moment) {  // some of them are those of a heartbeat
    Meeting meeting({0, 1}, {0, 10});
    meeting.run(10);
    for (int step = 0; step < 200 + moment; ++step) meeting.look_all();
    meeting.begin(1, value_of(1), false);
    meeting.network().cut[1] = true;
    for (int step = 0; step <= 1000; ++step) meeting.look_all();
    EXPECT(!meeting[0].job->lost());
    meeting.network().node(0).refused = true;
    for (int step = 0; step < 300; ++step) meeting.look_all();
    EXPECT(meeting[0].job->lost());
  }
}

// Rank 1 introduces itself by bytes that are no card, and then listens.
TEST(a_damaged_card_ends_the_meeting_on_all_ranks) {
  const auto fabric = transport::make_fabric({2, {0, 0}, 0, 0});
  const auto other = transport::connect(fabric, 1, false);
  base::ManualTime time;
  job::Job job(transport::connect(fabric, 0, false), base::TimeSource(time), {"h", 100, "h", true},
               [](const std::vector<int>&) { return std::unique_ptr<job::Neighbours>(); });
  base::Writer card;
  card.put(std::uint8_t{0});  // a part of an exchange
  card.put(std::uint32_t{1});
  card.put(std::uint32_t{0});
  card.put(std::uint32_t{1});
  card.put_vector(Bytes(3));
  other->send_message(0, card.take());
  for (int look = 0; look < 2; ++look) {
    std::string text;
    try {
      EXPECT(!job.pass());
    } catch (const base::Error& error) {
      EXPECT(error.code() == ErrorCode::kInternal);
      text = error.what();
    }
    EXPECT_HAS(text, "cannot read what rank 1 says of itself");
  }
  int source = -1;
  Bytes message, last;
  while (other->receive_message(&source, &message)) last = message;
  EXPECT(last.size() > 1 && last[0] == std::byte{1});
  const engine::Message told = engine::decode(std::span(last).subspan(1));
  EXPECT(std::holds_alternative<engine::Failure>(told));
  EXPECT_HAS(std::get<engine::Failure>(told).cause, "cannot read what rank 1 says of itself");
}

// A thread of its own looks between the waits, and nothing would catch what it throws.
TEST(a_rank_without_memory_fails_and_tells_the_others) {
  int lost = 0;
  for (std::size_t number = 1; number <= 20; ++number) {
    Meeting meeting({0, 1});
    meeting.run(10);
    meeting.begin(1, value_of(1), false);
    native_test::refuse_allocation(number);
    meeting[0].job->look();
    native_test::refuse_allocation(0);
    if (!meeting[0].job->lost()) continue;
    ++lost;
    meeting.run(60);
    EXPECT(meeting[1].failure.code == ErrorCode::kPeerLost);
    EXPECT_HAS(meeting[1].failure.message, "rank 0 (host h0, pid 100) failed: std::bad_alloc");
  }
  EXPECT(lost > 0);
}

// With a timeout that is switched off the stall limit still holds for a silent host, which is named.
TEST(patience_for_a_silent_host_ends) {
  Meeting meeting(kTwoHosts, {20, 0});
  meeting.run(10);
  for (const int number : {0, 1}) meeting.begin(number, value_of(number), false);
  meeting.network().cut[1] = true;
  meeting.run(60);
  EXPECT(meeting[0].failure.code == ErrorCode::kTimeout);
  EXPECT_HAS(
      meeting[0].failure.message,
      "(20 s), waiting for the host of rank 2 (host h1, pid 102), rank 3 (host h1, pid 103): "
      "the host is down, its link is cut, or its first rank is stopped");
}

}  // namespace
}  // namespace hvdlite::sim::jobs_test
