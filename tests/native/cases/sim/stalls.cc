// Ranks that do not come: what the others say of them, when, and when they give up. All times are virtual.
#include <thread>

#include "harness.h"
#include "sim/job.h"

namespace hvdlite::sim::stalls_test {
namespace {

using Lines = std::vector<std::string>;

base::Config limits(double warning, double shutdown = 0) {
  base::Config config = usual();
  config.deadlock_timeout = 0;
  config.log_level = base::LogLevel::kInfo;
  config.stall_check_time_seconds = warning;
  config.stall_shutdown_time_seconds = shutdown;
  return config;
}

Lines warnings(const Job& job) { return job.log().lines("WARN"); }

void come_late_with_many_tensors(const Shape& shape) {
  Job job(shape, limits(1));
  const Time begun = job.now();
  job.begin([&](Rank& rank) -> Program {
    if (rank.number() == 2) {
      co_await rank.until([&] { return !warnings(job).empty(); });
      const double seconds = job.seconds_since(begun);
      EXPECT(seconds >= 1 &&
             seconds < 1.3);     // its engine has nothing to do, and looks every 0.25 s
      co_await rank.compute(3);  // in which nothing more is said
    }
    std::vector<Operation*> mine;
    for (int i = 0; i < 200; ++i) mine.push_back(&rank.start("t" + std::to_string(i)));
    for (Operation* each : mine) {
      EXPECT((co_await rank.wait(*each)).ok());
      EXPECT(each->output == std::vector<float>(4, 6));
    }
    co_await rank.compute(2);  // in which it is noticed that it is over
  });
  job.run();
  const Lines said = warnings(job);
  EXPECT_OR(said.size() == 1, job.log().text());
  EXPECT_HAS(said[0], "allreduce of 't0' in process set 0, ");
  EXPECT_HAS(said[0], "and 197 more operations have waited 1.0 s for rank 2");
  EXPECT_HAS(said[0], "which has not submitted them");
  const Lines news = job.log().lines("stall: ended after 4.");
  EXPECT_OR(news.size() == 1, job.log().text());
  EXPECT_HAS(news[0], "INFO [control rank 0/3]");
}

TEST(one_line_for_many_tensors_and_then_all_goes_on) { come_late_with_many_tensors(one_host(3)); }

TEST(one_line_on_two_hosts) { come_late_with_many_tensors({.hosts = {0, 0, 1}}); }

void give_up(const Shape& shape) {
  Job job(shape, limits(0, 3));
  const Time begun = job.now();
  std::vector<std::string> texts;
  job.begin([&](Rank& rank) -> Program {
    if (rank.number() == 1) {
      co_await rank.compute(20);  // it comes back to life when all is over
    }
    const base::Status status = co_await rank.allreduce("x");
    EXPECT(status.code == base::ErrorCode::kPeerLost);
    texts.push_back(status.message);
  });
  job.run();
  EXPECT(texts.size() == 3 && texts[0] == texts[1] && texts[1] == texts[2]);
  EXPECT_HAS(
      texts[0],
      "rank 0 (host h0) gave up after 3.0 s (HVDLITE_STALL_SHUTDOWN_TIME_SECONDS): allreduce "
      "of 'x' in process set 0");
  EXPECT_HAS(texts[0], "for rank 1");
  EXPECT_HAS(texts[0], "which has not submitted it");
  EXPECT_HAS(texts[0], "Horovod has been shut down");
  EXPECT(warnings(job).empty());
  EXPECT(job.log().lines("last operations of this rank").size() == 2);  // rank 1 had none
  for (const Rank& rank : job.ranks()) {
    const double seconds = base::seconds_between(begun, rank.failed_at());
    EXPECT_OR(seconds >= 3 && seconds < 3.2, std::to_string(seconds));
  }
}

TEST(in_the_end_all_ranks_give_up_with_one_text) { give_up(one_host(3)); }

TEST(in_the_end_all_ranks_of_three_hosts_give_up_with_one_text) { give_up({.hosts = {0, 1, 2}}); }

// Stopped before it comes or in the middle of what all have agreed on: whoever does not answer either is told so.
void stop(std::int64_t elements, bool in_the_middle, const Shape& shape) {
  Job job(shape, limits(1, 3));
  std::vector<std::string> texts;
  Time stopped;
  job.begin([&, elements, in_the_middle](Rank& rank) -> Program {
    Operation* mine = nullptr;
    if (rank.number() != 1 || in_the_middle) mine = &rank.start("x", elements);
    if (rank.number() == 1) {
      const engine::SharedState& shared = rank.shared();
      if (in_the_middle) co_await rank.until([&] { return shared.counters.fused_ops > 0; });
      stopped = job.now();
      rank.stop(30);
      co_await rank.compute(0);
    }
    if (mine == nullptr) mine = &rank.start("x", elements);
    texts.push_back((co_await rank.wait(*mine)).message);
  });
  job.run();
  EXPECT_OR(texts.size() == 3 && texts[0] == texts[1] && texts[1] == texts[2], job.log().text());
  EXPECT_HAS(texts[0], "rank 0 (host h0) gave up after 3.0 s");
  EXPECT_HAS(texts[0], " s for rank 1 (host h");
  EXPECT_HAS(texts[0], "), which does not answer");
  EXPECT_OR(warnings(job).size() == 1, job.log().text());
  EXPECT_HAS(warnings(job)[0], "which does not answer");
  for (const int number : {0, 2}) {
    const double seconds = base::seconds_between(stopped, job.rank(number).failed_at());
    EXPECT_OR(seconds >= 3 && seconds < 4.6, std::to_string(seconds));  // and an answer's time
  }
}

TEST(who_is_stopped_is_given_up_and_learns_why) { stop(4, false, one_host(3)); }
TEST(who_is_stopped_on_another_host_is_given_up) { stop(4, false, {.hosts = {0, 1, 2}}); }
TEST(who_is_stopped_in_the_middle_is_given_up) { stop(100'000, true, one_host(3)); }
TEST(who_is_stopped_in_the_middle_of_messages_is_given_up) {
  stop(100'000, true, {.hosts = {0, 0, 0}, .shared_memory = false});
}

TEST(of_a_process_set_only_its_members_matter) {
  Job job(one_host(3), limits(1));
  job.begin([&](Rank& rank) -> Program {
    const std::vector<std::int64_t> members = {0, 2};
    EXPECT((co_await rank.add_set(members)).ok());
    if (rank.number() == 2) co_await rank.until([&] { return !warnings(job).empty(); });
    if (rank.number() != 1) EXPECT((co_await rank.allreduce("x", 4, 1)).ok());
  });
  job.run();
  EXPECT(warnings(job).size() == 1);
  EXPECT_HAS(warnings(job)[0], "allreduce of 'x' in process set 1 has waited");
  EXPECT_HAS(warnings(job)[0], "for rank 2");
  EXPECT(job.log().lines("rank 1 (").empty());
}

// A thread of the binding waits to be asked where rank 1 is, and says it, or cannot.
void ask(bool answers, const std::string& expected) {
  Job job(one_host(2), limits(1));
  job.begin([&, answers](Rank& rank) -> Program {
    if (rank.number() == 1) {
      engine::Watchdog& dog = rank.shared().watchdog;
      std::thread binding([&] { dog.wait(); });
      while (!dog.ask()) std::this_thread::yield();  // from now on it counts as attended
      binding.join();
      co_await rank.until([&] { return rank.outlook().watching; });  // it has been asked
      if (answers) dog.tell("it is at\nhome");
      co_await rank.until([&] { return !warnings(job).empty(); });
    }
    EXPECT((co_await rank.barrier("b")).ok());
  });
  job.run();
  EXPECT(warnings(job).size() == 1);
  EXPECT_HAS(warnings(job)[0], "for rank 1 (host h0), which has not submitted it: " + expected);
}

TEST(who_is_missing_says_where_it_is) { ask(true, "it is at home"); }
TEST(a_watchdog_that_cannot_run_python_is_told_of) {
  ask(false, "its place in the program is unknown: native code probably holds Python's GIL");
}

TEST(an_excuse_holds_warning_and_limit_back) {
  Job job(one_host(3), limits(1, 3));
  Time ended;
  job.begin([&](Rank& rank) -> Program {
    if (rank.number() == 1) {
      rank.shared().stall_exemption.set(1000);
      co_await rank.compute(300);
      EXPECT(warnings(job).empty() && !rank.failed());
      rank.shared().stall_exemption.set(0);
      ended = job.now();
      co_await rank.until([&] { return !warnings(job).empty(); });
      EXPECT(job.seconds_since(ended) >= 1 && job.seconds_since(ended) < 2.1);
      co_await rank.until([&] { return rank.failed(); });
      EXPECT(job.seconds_since(ended) >= 3 && job.seconds_since(ended) < 4.1);
    }
    EXPECT(!(co_await rank.allreduce("x")).ok());
  });
  job.run();
  EXPECT(warnings(job).size() == 1);
}

TEST(an_excused_rank_that_comes_is_not_spoken_of) {
  Job job(one_host(2), limits(1, 2));
  job.begin([&](Rank& rank) -> Program {
    if (rank.number() == 1) {
      rank.shared().stall_exemption.set(100);
      co_await rank.compute(50);
      rank.shared().stall_exemption.set(0);
    }
    EXPECT((co_await rank.allreduce("x")).ok());
  });
  job.run();
  EXPECT(job.log().text().empty());
}

TEST(switched_off_nothing_is_ever_said) {
  Job job(one_host(2), limits(0, 0));
  job.begin([&](Rank& rank) -> Program {
    if (rank.number() == 1) co_await rank.compute(600);
    EXPECT((co_await rank.allreduce("x")).ok());
  });
  job.run();
  EXPECT(job.log().text().empty());
}

}  // namespace
}  // namespace hvdlite::sim::stalls_test
