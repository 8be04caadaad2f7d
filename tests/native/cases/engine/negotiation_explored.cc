// Negotiation in every order: small jobs of its machines are stepped in all possible orders of what their ranks do and what arrives,
// as long as that leads to states not seen before. Jobs with too many states are stepped in drawn orders.
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <unordered_set>

#include "engine/negotiation_job.h"
#include "harness.h"

namespace hvdlite::engine::negotiation_test {
namespace {

struct Plan {
  std::vector<int> hosts;
  // What each rank asks for, in its order: letters as Rank::ask_for takes them (a capital: with another content), and . to leave.
  std::vector<std::string> programs;
  int verdicts = 0;         // that may come, on all that is asked for
  int dies = -1;            // the rank that may die, between its steps or in one
  bool replicates = false;  // ranks that share no memory have copies of a ledger
};

// What may happen next.
struct Choice {
  enum Kind : std::uint8_t {
    kAsk,
    kPass,
    kPassOneStep,
    kPassRefused,
    kArrive,
    kVerdict,
    kDie,
    kDieInStep
  };
  Kind kind = kAsk;
  int rank = 0;
  int to = 0;  // of a message
};

// A job on the way through its plan.
class Walk {
 public:
  explicit Walk(const Plan& plan)
      : plan_(plan), job_(plan.hosts, 2, plan.replicates ? 16 : 0), ranks_(plan.programs.size()) {
    job_.run();  // the agreement begins
  }

  std::vector<Choice> choices() {
    std::vector<Choice> found;
    for (int rank = 0; rank < job_.size(); ++rank) {
      for (const auto kind : {Choice::kAsk, Choice::kPass}) found.push_back({kind, rank});
      if (plan_.replicates) continue;  // no step of a copy is refused
      for (const auto kind : {Choice::kPassOneStep, Choice::kPassRefused}) {
        found.push_back({kind, rank});
      }
    }
    for (const auto& [from, to] : job_.busy()) found.push_back({Choice::kArrive, from, to});
    if (verdicts_ < plan_.verdicts) found.push_back({Choice::kVerdict});
    if (plan_.dies >= 0 && !job_[plan_.dies].ended) {
      found.push_back({Choice::kDie, plan_.dies});
      found.push_back({Choice::kDieInStep, plan_.dies});
    }
    return found;
  }

  void take(const Choice& choice) {
    switch (choice.kind) {
      case Choice::kAsk:
        return ask(choice.rank);
      case Choice::kPass:
        return pass(choice.rank, Trouble::kAll);
      case Choice::kPassOneStep:
        return pass(choice.rank, 1);
      case Choice::kPassRefused:
        return pass(choice.rank, 0);
      case Choice::kArrive:
        return job_.deliver({choice.rank, choice.to});
      case Choice::kVerdict:
        ++verdicts_;
        return job_.verdict(0, {"a", "b", "c"});
      case Choice::kDie:
        return job_.die(choice.rank);
      case Choice::kDieInStep:
        job_[choice.rank].trouble.dies_in_step = true;
        pass(choice.rank, Trouble::kAll);
        return job_.die(choice.rank);
    }
  }

  std::uint64_t digest() const {
    base::Hasher hasher;
    hasher.add(job_.digest());
    hasher.add_signed(verdicts_);
    for (const Asking& asking : ranks_) hasher.add(asking.next);
    return hasher.value();
  }

  // All ranks do the same in one order, as far as they have come.
  void check_order() {
    for (int rank = 1; rank < job_.size(); ++rank) {
      const auto one = did(0), other = did(rank);
      const std::size_t common = std::min(one.size(), other.size());
      for (std::size_t i = 0; i < common; ++i) {
        EXPECT_OR(one[i] == other[i],
                  "0 did " + one[i] + ", " + std::to_string(rank) + " " + other[i]);
      }
    }
  }
  // Nothing more can happen.
  void check_end() {
    if (job_[std::max(plan_.dies, 0)].ended) return;  // Membership ends what waits for it
    std::map<char, int> waits;
    bool somebody_left = false;
    for (int rank = 0; rank < job_.size(); ++rank) {
      const Asking& asking = ranks_[static_cast<std::size_t>(rank)];
      for (const auto& [name, completion] : asking.asked)
        waits[name] += completion->is_done() ? 0 : 1;
      EXPECT(asking.left || did(rank).size() == did(longest()).size());
      somebody_left = somebody_left || asking.left;
    }
    int waiting = 0;
    for (const auto& [name, ranks] : waits) {
      // A verdict fails what some have asked for, and others may ask for it later.
      EXPECT_OR(ranks == 0 || (verdicts_ > 0 && ranks < job_.size()), std::string(1, name));
      waiting += ranks > 0 ? 1 : 0;
    }
    const PlainTable& table = *job_.table({0, 1}, job_.size());
    const auto cells = static_cast<int>(table.cells.size());
    EXPECT(!table.exists || somebody_left || (table.open && cells == waiting));
  }

 private:
  struct Asking {
    std::size_t next = 0;
    bool left = false;
    std::map<char, CompletionPtr> asked;
  };

  std::vector<std::string> did(int rank) {
    std::vector<std::string> did = job_[rank].did;
    for (std::string& each : did) std::erase(each, '-');  // a joined rank does the same
    return did;
  }
  int longest() {
    int best = 0;
    for (int rank = 1; rank < job_.size(); ++rank) {
      if (did(rank).size() > did(best).size()) best = rank;
    }
    return best;
  }

  void pass(int rank, int allow) {
    job_[rank].trouble.allow = allow;
    job_.pass(rank);
    job_[rank].trouble.allow = Trouble::kAll;
  }

  void ask(int number) {
    Rank& rank = job_[number];
    Asking& asking = ranks_[static_cast<std::size_t>(number)];
    const std::string& program = plan_.programs[static_cast<std::size_t>(number)];
    if (rank.ended || asking.left || asking.next == program.size()) return;
    const char letter = program[asking.next];
    if (letter == '.') {
      if (!(asking.left = rank.leave())) return;
    } else {
      const bool other = letter >= 'A' && letter <= 'Z';
      const char name = other ? static_cast<char>(letter - 'A' + 'a') : letter;
      for (const char each : {name, '+', '>', '<'}) {
        if (asking.asked.contains(each) && !asking.asked[each]->is_done()) return;
      }
      rank.prepares = name == 'a' || name == 'v' || name == 'w';
      asking.asked[name] = rank.ask_for(name, other);
    }
    ++asking.next;
  }

  const Plan& plan_;
  Job job_;
  int verdicts_ = 0;
  std::vector<Asking> ranks_;
};

// Gives how many states there are. A state is come to again from the beginning: nothing is copied. The states that are the fewest
// steps away come first, so that the ways are short.
std::size_t explore(const Plan& plan) {
  std::unordered_set<std::uint64_t> seen;
  std::deque<std::vector<Choice>> open = {{}};
  while (!open.empty()) {
    const std::vector<Choice> path = std::move(open.front());
    open.pop_front();
    const auto come_here = [&] {
      auto walk = std::make_unique<Walk>(plan);
      for (const Choice& choice : path) walk->take(choice);
      return walk;
    };
    auto walk = come_here();
    const std::uint64_t here = walk->digest();
    bool any = false;
    for (const Choice& choice : walk->choices()) {
      if (!walk) walk = come_here();
      walk->take(choice);
      const std::uint64_t there = walk->digest();
      if (there == here) continue;
      any = true;
      walk->check_order();
      if (seen.insert(there).second) {
        open.push_back(path);
        open.back().push_back(choice);
      }
      walk.reset();
    }
    if (!any) walk->check_end();
  }
  return seen.size();
}

// At least: four fifths of those that there were when this was written, so that it is seen if they are not walked through any more.
void expect_states(const Plan& plan, std::size_t least) {
  const std::size_t states = explore(plan);
  EXPECT_OR(states >= least, std::to_string(states) + " states");
}

// Steps from the beginning until nothing more can happen, in drawn orders.
void expect_ends_in_drawn_orders(const Plan& plan) {
  for (std::uint32_t seed = 0; seed < 1000; ++seed) {
    std::mt19937 drawn(seed);
    Walk walk(plan);
    bool any = true;
    while (any) {
      std::vector<Choice> choices = walk.choices();
      std::ranges::shuffle(choices, drawn);
      const std::uint64_t here = walk.digest();
      any = std::ranges::any_of(choices, [&](const Choice& choice) {
        walk.take(choice);
        return walk.digest() != here;
      });
      walk.check_order();
    }
    walk.check_end();
  }
}

// Ranks on hosts of their own, with copies of the ledger.
Plan copies(std::vector<std::string> programs, int verdicts = 0) {
  std::vector<int> hosts(programs.size());
  std::iota(hosts.begin(), hosts.end(), 0);
  return {hosts, std::move(programs), verdicts, /*dies=*/-1, /*replicates=*/true};
}

TEST(two_ranks_in_opposite_orders) { expect_states({kOneHost, {"abc", "cba"}}, 250); }
TEST(the_same_names_again) { expect_states({kOneHost, {"aba", "baa"}}, 190); }
TEST(a_verdict_at_any_time) { expect_states({kOneHost, {"ab", "ba"}, /*verdicts=*/1}, 3190); }
TEST(two_verdicts_at_any_time) { expect_states({kOneHost, {"ab", "ba"}, /*verdicts=*/2}, 30890); }
TEST(a_mismatch_and_its_name_again) { expect_states({kOneHost, {"Aab", "aab"}}, 220); }
TEST(a_mismatch_beside_other_names) { expect_states({kOneHost, {"bAc", "cab"}}, 720); }
TEST(a_mismatch_and_a_verdict) { expect_states({kOneHost, {"bA", "ab"}, /*verdicts=*/1}, 4760); }
TEST(rows_that_differ_and_then_do_not) { expect_states({kOneHost, {"Gg", "gg"}}, 80); }
TEST(rows_that_differ_beside_other_names) { expect_states({kOneHost, {"aGg", "gag"}}, 720); }
TEST(rows_that_differ_and_a_join) { expect_states({kOneHost, {"G+", "ga+"}}, 5880); }
TEST(a_join) { expect_states({kOneHost, {"+b", "a+b"}}, 640); }
TEST(a_join_behind_a_name) { expect_states({kOneHost, {"a+b", "ca+b"}}, 3010); }
TEST(a_join_and_a_mismatch) { expect_states({kOneHost, {"A+", "ba+"}}, 3740); }
TEST(a_join_and_a_verdict) { expect_states({kOneHost, {"+", "ba+"}, /*verdicts=*/1}, 10540); }
TEST(a_rank_leaves) { expect_states({kOneHost, {"abc", "ba."}}, 4650); }
TEST(a_coordinator_leaves) { expect_states({kOneHost, {"ab.", "bac"}}, 1890); }
TEST(both_leave) { expect_states({kOneHost, {"ab.", "b."}}, 3090); }
TEST(a_rank_dies_in_or_between_steps) {
  expect_states({kOneHost, {"ab", "ba"}, /*verdicts=*/0, /*dies=*/1}, 180);
}
TEST(a_coordinator_dies_in_or_between_steps) {
  expect_states({kOneHost, {"aB", "ba"}, /*verdicts=*/0, /*dies=*/0}, 700);
}
TEST(a_set_comes_beside_names) { expect_states({kOneHost, {">ab", "ba>"}}, 290); }
TEST(a_set_comes_and_goes) { expect_states({kOneHost, {">a<", "a><"}}, 750); }
TEST(three_ranks_agree) { expect_states({kThree, {"ab", "ba", "ab"}}, 420); }
TEST(three_ranks_of_which_one_disagrees) { expect_states({kThree, {"ab", "Ab", "ba"}}, 5210); }
TEST(three_ranks_of_which_one_joins) { expect_states({kThree, {"+", "a+", "+"}}, 7770); }
TEST(three_ranks_of_which_one_leaves) { expect_states({kThree, {"a", "a", "a."}}, 36280); }
TEST(two_ranks_apart) { expect_states({kApart, {"abA", "baa"}}, 150); }
TEST(two_ranks_apart_one_of_which_joins) { expect_states({kApart, {"+b", "a+b"}}, 70); }
TEST(two_ranks_apart_one_of_which_leaves) { expect_states({kApart, {"abc", "ba."}}, 540); }

TEST(copies_in_opposite_orders) { expect_states(copies({"ab", "ba"}), 290); }
TEST(copies_and_the_same_names_again) { expect_states(copies({"aba", "baa"}), 680); }
TEST(copies_and_a_mismatch) { expect_states(copies({"Aa", "aa"}), 260); }
TEST(copies_and_a_mismatch_beside_other_names) { expect_states(copies({"bA", "ab"}), 2700); }
TEST(copies_and_rows_that_differ) { expect_states(copies({"Gg", "gg"}), 650); }
TEST(copies_and_rows_that_differ_beside_other_names) { expect_states(copies({"aG", "ga"}), 2830); }
TEST(copies_and_a_verdict) { expect_states(copies({"a", "b"}, /*verdicts=*/1), 8200); }
TEST(copies_and_a_join) { expect_states(copies({"+", "a+"}), 17600); }
TEST(copies_and_a_join_behind_a_name) { expect_states(copies({"a+", "a+"}), 193000); }
TEST(copies_and_a_rank_that_leaves) { expect_states(copies({"ab", "a."}), 11900); }
TEST(copies_and_a_coordinator_that_leaves) { expect_states(copies({"a.", "ba"}), 9900); }
TEST(copies_and_both_leave) { expect_states(copies({"a.", "."}), 3800); }
TEST(copies_beside_a_set_that_comes) { expect_states(copies({">a", "a>"}), 310); }
TEST(copies_and_groups) { expect_states(copies({"vw", "wv"}), 190); }
TEST(copies_and_groups_beside_a_name) { expect_states(copies({"vaw", "wva"}), 1320); }
TEST(copies_and_a_mismatch_beside_groups) { expect_states(copies({"Vw", "wv"}), 880); }
TEST(copies_of_three) { expect_states(copies({"a", "a", "a"}), 660); }
TEST(copies_of_three_in_other_orders) { expect_states(copies({"ab", "ba", "ab"}), 180000); }
TEST(copies_of_three_of_which_one_leaves) {
  expect_ends_in_drawn_orders(copies({"ab", "ba.", "ab"}));
}
TEST(copies_of_three_of_which_two_leave) {
  expect_ends_in_drawn_orders(copies({"ab.", "b.", "ab"}));
  expect_ends_in_drawn_orders(copies({"vaw.", "wv.", "vwa"}));
}
TEST(copies_of_three_of_which_one_joins) {
  expect_ends_in_drawn_orders(copies({"+ab", "b+ab", "ab+ab"}));
  expect_ends_in_drawn_orders(copies({"v+w", "wv+w", "vw+w"}));
}

}  // namespace
}  // namespace hvdlite::engine::negotiation_test
