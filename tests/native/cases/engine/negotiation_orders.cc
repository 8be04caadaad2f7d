// Negotiation by itself, in many orders of what happens: jobs of its machines, stepped as drawn.
#include <map>
#include <random>

#include "engine/negotiation_job.h"
#include "harness.h"

namespace hvdlite::engine::negotiation_test {
namespace {

// Each rank asks for the letters of its program (Rank::ask_for; capitals with another content) in its order, for one name when the
// last of that name has ended.
class Programs {
 public:
  Programs(Job& job, std::vector<std::string> programs, std::uint64_t seed)
      : job_(job), programs_(std::move(programs)), draw_(seed), ranks_(programs_.size()) {}

  // What happens next is drawn: a rank asks, makes a pass, has a step refused; a message arrives. Then all goes on to its end.
  void run() {
    for (int step = 0; step < 150; ++step) {
      const auto rank = static_cast<std::size_t>(draw(programs_.size()));
      const auto wires = job_.busy();
      const auto what = draw(8);
      if (what < 2) {
        ask(rank);
      } else if (what < 4 && !wires.empty()) {
        job_.deliver(wires[draw(wires.size())]);
      } else {
        job_[static_cast<int>(rank)].prepares = draw(2) == 0;
        int& allow = job_[static_cast<int>(rank)].trouble.allow;
        allow = draw(4) == 0 ? static_cast<int>(draw(2)) : Trouble::kAll;
        job_.pass(static_cast<int>(rank));
        allow = Trouble::kAll;
      }
    }
    for (bool any = true; any;) {
      job_.run();
      any = false;
      for (std::size_t rank = 0; rank < programs_.size(); ++rank) any = ask(rank) || any;
    }
  }
  void expect_all_ended() const {
    for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
      EXPECT(ranks_[rank].next == programs_[rank].size());
      for (const auto& [name, completion] : ranks_[rank].asked) EXPECT(completion->is_done());
    }
  }

 private:
  struct Asking {
    std::size_t next = 0;
    std::map<char, CompletionPtr> asked;
  };

  std::uint64_t draw(std::uint64_t most) { return draw_() % most; }
  bool ask(std::size_t rank) {
    Asking& asking = ranks_[rank];
    if (asking.next == programs_[rank].size()) return false;
    const char letter = programs_[rank][asking.next];
    const bool other = letter >= 'A' && letter <= 'Z';
    const char name = other ? static_cast<char>(letter - 'A' + 'a') : letter;
    const auto under_way = [&](char each) {
      return asking.asked.contains(each) && !asking.asked[each]->is_done();
    };
    if (under_way(name) || under_way('+') || under_way('>') || under_way('<')) return false;
    ++asking.next;
    asking.asked[name] = job_[static_cast<int>(rank)].ask_for(name, other);
    return true;
  }
  Job& job_;
  std::vector<std::string> programs_;
  std::mt19937_64 draw_;
  std::vector<Asking> ranks_;
};

// A joined rank does the same without values.
Did without_absence(Did did) {
  for (std::string& each : did) std::erase(each, '-');
  return did;
}

// How the ranks agree: in memory if they are on one host; otherwise in copies of a ledger, or with the coordinator.
struct Ways {
  std::vector<int> hosts;
  int ledger_copies = 0;
};
const std::vector<Ways> kTwoRanks = {{kOneHost}, {kApart}, {kApart, 2}};
const std::vector<Ways> kThreeRanks = {{kThree}, {kThreeApart, 3}};

void expect_agreement_in_many_orders(const Ways& ways, const std::vector<std::string>& programs) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Job job(ways.hosts, 2, ways.ledger_copies);
    Programs running(job, programs, seed);
    running.run();
    running.expect_all_ended();
    for (int rank = 1; rank < job.size(); ++rank) {
      EXPECT_OR(without_absence(job[rank].did) == without_absence(job[0].did),
                "order " + std::to_string(seed));
      EXPECT(job[rank].sets == job[0].sets && job[rank].failed == job[0].failed);
    }
    const PlainTable& table = *job.table({0, 1}, job.size());
    EXPECT(!table.exists || (table.open && table.cells.empty()));
  }
}

TEST(in_many_orders_all_do_the_same_in_one_order) {
  for (const Ways& ways : kTwoRanks) {
    expect_agreement_in_many_orders(ways, {"abcd", "dbca"});
    expect_agreement_in_many_orders(ways, {"abaab", "baaba"});
  }
  for (const Ways& ways : kThreeRanks) expect_agreement_in_many_orders(ways, {"abc", "bca", "cab"});
}

TEST(in_many_orders_groups_are_prepared_beside_other_operations) {
  for (const Ways& ways : kTwoRanks) {
    expect_agreement_in_many_orders(ways, {"vwabv", "wvbva"});
    expect_agreement_in_many_orders(ways, {"vWaw+v", "avww+v"});
  }
  for (const Ways& ways : kThreeRanks)
    expect_agreement_in_many_orders(ways, {"vawv", "wvav", "avWv"});
}

TEST(in_many_orders_a_mismatch_fails_alike_and_diverts_no_longer_than_it_must) {
  for (const Ways& ways : kTwoRanks) {
    expect_agreement_in_many_orders(ways, {"aAb", "aab"});
    expect_agreement_in_many_orders(ways, {"bAa", "abA"});
  }
  for (const Ways& ways : kThreeRanks) expect_agreement_in_many_orders(ways, {"aab", "aAb", "baa"});
}

TEST(in_many_orders_rows_differ_and_then_do_not) {
  for (const Ways& ways : kTwoRanks) {
    expect_agreement_in_many_orders(ways, {"Ggag", "gagg"});
    expect_agreement_in_many_orders(ways, {"gG+ag", "ggb+ga"});
  }
  for (const Ways& ways : kThreeRanks) expect_agreement_in_many_orders(ways, {"gag", "Gga", "gga"});
}

TEST(in_many_orders_ranks_join_and_go_on) {
  for (const Ways& ways : kTwoRanks) {
    expect_agreement_in_many_orders(ways, {"a+ab", "ba+ba"});
    expect_agreement_in_many_orders(ways, {"+a", "cd+a"});
  }
  for (const Ways& ways : kThreeRanks)
    expect_agreement_in_many_orders(ways, {"+ab", "c+ba", "dc+ab"});
}

TEST(in_many_orders_sets_come_and_go) {
  for (const Ways& ways : kTwoRanks) {
    expect_agreement_in_many_orders(ways, {"a>b<c>", "b>a<c>"});
  }
}

}  // namespace
}  // namespace hvdlite::engine::negotiation_test
