// The stall inspector by a clock of its own.
#include "engine/membership/stall.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness.h"

namespace hvdlite::engine::stall_test {
namespace {

using Time = StallInspector::Time;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A job of four ranks, of which this is one, with a limit of 10 s for warnings and of 100 s for giving up.
struct Rank {
  explicit Rank(int rank, StallInspector::Limits limits = {10, 100})
      : roster(rank, {{0, "rank 0"}, {1, "rank 1"}, {2, "rank 2"}, {3, "rank 3"}}),
        inspector(limits, rank) {}

  void submit(const std::string& name, int set = 0) {
    ++newest;
    Request& request = requests[newest];
    request.set = {set, 1};
    roster.add_set(request.set, std::make_shared<const std::vector<int>>(std::vector{0, 1, 2, 3}));
    request.name = name;
    at(now, true);
  }
  // The last submission of it has ended.
  void end(const std::string& name) {
    std::erase_if(requests, [&](const auto& each) { return each.second.name == name; });
  }
  // Time goes on to `second`, and it looks (if it is due, or in any case).
  void at(double second, bool always = false) {
    for (; now <= second; now += 0.25) {
      const Time time =
          Time() + std::chrono::milliseconds(1'000'000 + static_cast<long>(now * 1000));
      if (!always && !inspector.due(time)) continue;
      inspector.note(time, newest, activity);
      std::vector<Stalled> stalled;
      for (const auto& [record, request] : requests) {
        const double age = inspector.age(record, time);
        const bool agreed = under_way || agreed_too.contains(request.name);
        if (age >= inspector.least_age() / 2) stalled.push_back({record, &request, agreed, age});
      }
      auto actions = inspector.look(time, stalled, roster,
                                    [](int each) { return each == 3 ? "it is stopped" : ""; });
      if (!actions.ask.empty()) {
        asked = actions.ask;
        questions.push_back(actions.inquiry);
        if (answer) {
          for (const int rank : actions.ask) answer(rank, actions.inquiry);
        }
      }
      for (auto& line : actions.warnings) warnings.push_back(line);
      for (auto& line : actions.news) news.push_back(line);
      if (verdict.empty() && !actions.verdict.empty()) {
        verdict = actions.verdict;
        gave_up_at = now;
      }
      if (always) return;
    }
  }
  Time time() const {
    return Time() + std::chrono::milliseconds(1'000'000 + static_cast<long>(now * 1000));
  }
  // These ranks lack everything that they are asked for, those have all.
  void lacking(const std::vector<int>& ranks, const std::string& text = "at f",
               double since_exemption = 1e18) {
    answer = [=, this](int rank, const Inquiry& question) {
      StallReply reply{.number = question.number, .since_exemption = since_exemption};
      if (std::ranges::count(ranks, rank) > 0) {
        for (std::uint32_t i = 0; i < question.operations.size(); ++i) {
          reply.lacks.push_back(i);
        }
        reply.text = text;
      }
      inspector.hear(rank, reply);
    };
  }
  // Rank 1 lacks the first operation of each question, rank 2 the second one.
  void lacking_one_each() {
    answer = [this](int each, const Inquiry& question) {
      StallReply reply{.number = question.number, .since_exemption = 1e18};
      if (each == 1) reply.lacks = {0};
      if (each == 2) reply.lacks = {1};
      inspector.hear(each, reply);
    };
  }

  bool under_way = false;            // all operations
  std::set<std::string> agreed_too;  // names of operations that are under way in any case
  double now = 0;
  std::uint64_t newest = 0, activity = 1;
  std::map<std::uint64_t, Request> requests;
  std::function<void(int, const Inquiry&)> answer;
  std::vector<int> asked;
  std::vector<Inquiry> questions;
  std::vector<std::string> warnings, news;
  std::string verdict;
  double gave_up_at = 0;
  Roster roster;
  StallInspector inspector;
};

TEST(what_is_not_old_is_not_asked_for) {
  Rank rank(0);
  rank.lacking({2});
  rank.submit("a");
  rank.at(9.5);
  EXPECT(rank.questions.empty());
  rank.end("a");
  rank.submit("b");
  rank.at(19);
  EXPECT(rank.questions.empty() && rank.warnings.empty());
}

TEST(one_line_names_who_is_missing_and_where) {
  Rank rank(0);
  rank.lacking({2}, "its main thread is at train.py:7 evaluate");
  rank.submit("a");
  rank.at(99);
  EXPECT(rank.warnings.size() == 1);
  EXPECT(has(rank.warnings[0],
             "'a' in process set 0 has waited 10 s for rank 2, which has not submitted it: its "
             "main thread is "
             "at train.py:7 evaluate"));
  EXPECT(!has(rank.warnings[0], "rank 1") && !has(rank.warnings[0], "rank 3"));
  EXPECT((rank.asked == std::vector<int>{1, 2, 3}));
}

TEST(two_hundred_tensors_are_one_line) {
  Rank rank(0);
  rank.lacking({1});
  for (int i = 0; i < 200; ++i) rank.submit("t" + std::to_string(i));
  rank.at(60);
  EXPECT(rank.warnings.size() == 1);
  EXPECT(has(rank.warnings[0], "'t0'") && has(rank.warnings[0], "and 197 more operations"));
  EXPECT(rank.questions[0].operations.size() == Inquiry::kMost);
}

TEST(those_that_wait_for_other_ranks_are_another_line) {
  Rank rank(0);
  rank.lacking_one_each();
  rank.submit("a");
  rank.submit("b");
  rank.at(15);
  EXPECT(rank.warnings.size() == 2);
  EXPECT(has(rank.warnings[0], "'a'") && has(rank.warnings[0], "for rank 1"));
  EXPECT(has(rank.warnings[1], "'b'") && has(rank.warnings[1], "for rank 2"));
}

TEST(what_no_question_named_is_said_to_wait_for_no_rank) {
  Rank rank(0);
  rank.lacking_one_each();
  for (std::size_t i = 0; i < Inquiry::kMost + 6; ++i) rank.submit("t" + std::to_string(i));
  rank.at(15);
  EXPECT(rank.warnings.size() == 2 && !has(rank.warnings[0], "more operations"));
  EXPECT(has(rank.warnings[1], "; 6 more operations have waited, too"));
}

TEST(its_end_is_one_line) {
  Rank rank(0);
  rank.lacking({1});
  rank.submit("a");
  rank.at(30);
  EXPECT(rank.news.empty());
  rank.end("a");
  rank.at(60);
  EXPECT(rank.news.size() == 1 && rank.warnings.size() == 1);
  EXPECT(has(rank.news[0], "ended after 3") && has(rank.news[0], "'a'"));
}

TEST(who_is_silent_is_missing) {
  Rank rank(0);
  const auto some = [&](int each, const Inquiry& question) {
    if (each != 3) rank.inspector.hear(each, {.number = question.number, .since_exemption = 1e18});
  };
  rank.answer = some;
  rank.submit("a");
  rank.at(10.5);
  EXPECT(rank.questions.size() == 1 && rank.warnings.empty());  // it waits for the answer
  rank.at(14);
  EXPECT(rank.warnings.size() == 1);
  EXPECT(has(rank.warnings[0], "for rank 3, which does not answer: it is stopped"));
  EXPECT(!has(rank.warnings[0], "rank 1") && !has(rank.warnings[0], "rank 2"));
}

TEST(who_has_left_an_operation_under_way_is_missing) {
  Rank rank(0);
  rank.roster.leave(2);
  rank.under_way = true;
  rank.lacking({});
  rank.submit("a");
  rank.at(14);
  EXPECT((rank.asked == std::vector<int>{1, 3}));
  EXPECT(rank.warnings.size() == 1 && has(rank.warnings[0], "for rank 2, which has left"));
}

TEST(under_way_it_matters_whether_data_move) {
  Rank rank(0);
  rank.under_way = true;
  rank.lacking({1});  // they have finished it
  rank.submit("a");
  for (; rank.now < 200;) {
    ++rank.activity;
    rank.at(rank.now + 1);
  }
  EXPECT(rank.warnings.empty() && rank.verdict.empty());
  rank.at(450);
  EXPECT(rank.warnings.size() == 1 && has(rank.warnings[0], "no data move"));
  EXPECT(has(rank.verdict, "no data move"));
}

TEST(what_lacks_no_rank_is_told_apart_from_what_is_under_way) {
  Rank rank(0);
  rank.agreed_too = {"b"};
  rank.lacking({});
  rank.submit("a");
  rank.submit("b");
  rank.at(60);
  EXPECT(rank.warnings.size() == 2);
  EXPECT(has(rank.warnings[0], "'a'") && has(rank.warnings[0], "though no rank lacks it"));
  EXPECT(has(rank.warnings[1], "'b'") && has(rank.warnings[1], "no data move"));
}

TEST(in_the_end_it_gives_up) {
  Rank rank(0);
  rank.lacking({1, 2}, "at f");
  rank.submit("a");
  rank.at(120);
  EXPECT(rank.gave_up_at >= 100 && rank.gave_up_at <= 102);
  EXPECT(has(rank.verdict, "gave up after 100 s (HVDLITE_STALL_SHUTDOWN_TIME_SECONDS): "));
  EXPECT(has(rank.verdict, "rank 1, which has not submitted it: at f, and for rank 2, which"));
  EXPECT(rank.warnings.size() == 1);
}

TEST(zero_is_never) {
  Rank never(0, {10, 0});
  never.lacking({1});
  never.submit("a");
  never.at(5000);
  EXPECT(never.verdict.empty() && never.warnings.size() == 1);
  Rank silent(0, {0, 100});
  silent.lacking({1});
  silent.submit("a");
  silent.at(120);
  EXPECT(silent.warnings.empty() && !silent.verdict.empty());
}

TEST(an_excuse_holds_both_back) {
  Rank rank(0);
  rank.submit("a");
  const double ends = 300;
  rank.answer = [&](int each, const Inquiry& question) {
    StallReply answer{.number = question.number, .since_exemption = 1e18};
    if (each == 1) {
      answer.lacks = {0};
      answer.since_exemption = rank.now - ends;
    }
    rank.inspector.hear(each, answer);
  };
  rank.at(ends + 9);
  EXPECT(rank.warnings.empty() && rank.verdict.empty() && !rank.questions.empty());
  rank.at(ends + 25);
  EXPECT(rank.warnings.size() == 1 && rank.verdict.empty());
  rank.at(ends + 99);
  EXPECT(rank.verdict.empty());
  rank.at(ends + 115);
  EXPECT(rank.warnings.size() == 1 && !rank.verdict.empty());
}

TEST(an_excuse_is_of_one_rank) {
  Rank rank(0);
  rank.submit("a");
  rank.answer = [&](int each, const Inquiry& question) {
    StallReply answer{.number = question.number, .since_exemption = each == 1 ? -1000.0 : 1e18};
    if (each <= 2) answer.lacks = {0};
    rank.inspector.hear(each, answer);
  };
  rank.at(15);
  EXPECT(rank.warnings.size() == 1 && has(rank.warnings[0], "for rank 2"));
  EXPECT(!has(rank.warnings[0], "rank 1"));
}

TEST(one_rank_asks_for_all_that_wait) {
  Rank rank(1);
  rank.lacking({2});
  rank.submit("a");
  rank.at(10.01);
  EXPECT(!rank.inspector.claim(0, {0, 1}, false, rank.time()));  // rank 0 asks of it
  rank.at(20);
  EXPECT(rank.questions.empty());
  EXPECT(!rank.inspector.claim(0, {0, 1}, false, rank.time()));  // again, as it does
  rank.at(34);
  EXPECT(rank.questions.empty());
  rank.at(40);  // it does no more
  EXPECT(!rank.questions.empty());
}

TEST(who_has_told_goes_on_with_it) {
  Rank rank(1);
  rank.lacking({2});
  rank.submit("a");
  rank.at(15);
  EXPECT(rank.warnings.size() == 1);
  EXPECT(rank.inspector.claim(0, {0, 1}, false, rank.time()));
  Rank other(0);
  other.answer = [&](int each, const Inquiry& question) {
    StallReply answer{.number = question.number, .since_exemption = 1e18};
    if (each == 1) answer.in_hand = {0};
    if (each == 2) answer.lacks = {0};
    other.inspector.hear(each, answer);
  };
  other.submit("a");
  other.at(20);
  EXPECT(!other.questions.empty() && other.warnings.empty());
}

TEST(who_waits_at_the_same_time_leaves_it_to_the_lower_rank) {
  Rank low(0), high(1);
  for (Rank* rank : {&low, &high}) {
    rank->submit("a");
    rank->at(10.5);
    EXPECT(rank->questions.size() == 1);  // nobody has answered yet
  }
  EXPECT(low.inspector.claim(1, {0, 1}, false, low.time()));
  EXPECT(!high.inspector.claim(0, {0, 1}, false, high.time()));
  low.at(16);
  high.at(16);
  EXPECT(low.warnings.size() == 1 && high.warnings.empty());
}

TEST(what_was_about_to_come_is_no_stall) {
  Rank rank(0);
  rank.lacking({});
  rank.submit("a");
  rank.at(15);
  EXPECT(rank.questions.size() == 1 && rank.warnings.empty());
  rank.end("a");
  rank.at(60);
  EXPECT(rank.warnings.empty());
  rank.submit("b");
  rank.at(90);  // of which no rank says that it lacks it, again and again
  EXPECT(rank.warnings.size() == 1 && has(rank.warnings[0], "though no rank lacks it"));
}

TEST(late_and_false_answers_change_nothing) {
  Rank rank(0);
  rank.submit("a");
  rank.at(10.5);
  EXPECT(rank.questions.size() == 1);
  rank.inspector.hear(2, {.number = 77, .lacks = {0}, .since_exemption = 1e18});
  rank.inspector.hear(9, {.number = 1, .lacks = {0}, .since_exemption = 1e18});
  rank.inspector.hear(1, {.number = 1, .lacks = {63}, .in_hand = {63}, .since_exemption = 1e18});
  rank.at(16);
  EXPECT(rank.warnings.size() == 1);
  EXPECT(has(rank.warnings[0], "rank 2, which does not answer"));
  EXPECT(!has(rank.warnings[0], "rank 1"));
}

TEST(a_verdict_has_a_length) {
  Rank rank(0);
  rank.lacking({1, 2, 3}, std::string(4000, 'f'));
  for (int i = 0; i < 20; ++i) rank.submit(std::string(3000, 'n') + std::to_string(i));
  rank.at(120);
  EXPECT(!rank.verdict.empty() && rank.verdict.size() < 3000);
}

}  // namespace
}  // namespace hvdlite::engine::stall_test
