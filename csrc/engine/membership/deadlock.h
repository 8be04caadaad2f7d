// Finds ranks that wait for each other for ever. Pure: reports in, probes and verdicts out.
// Thread: one at a time. Owns: the last report of each rank. Blocks: no. Throws: nothing.
//
// A rank is blocked when every thread of it that ever waits now sleeps on an operation that is not agreed. Of the blocked ranks
// those are stuck whose every awaited operation lacks a stuck rank (the greatest such set), and a receive from any rank all of them. Since reports travel, a finding
// is checked: it must hold for a while, then every stuck rank is probed and must answer that nothing has changed since its
// report. Operations of unequal kind, misspelt names and missing tensors all end up here.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/thread.h"
#include "engine/membership/roster.h"
#include "engine/model/messages.h"

namespace hvdlite::engine {

class DeadlockDetector {
 public:
  // patience: how long a finding must hold before it is probed.
  explicit DeadlockDetector(base::microseconds patience) : patience_(patience) {}

  void report(int rank, BlockedReport report);

  struct Actions {
    std::vector<int> probe;  // ranks to ask whether it is still so, with this number
    std::uint64_t number = 0;
    // What can never complete, by process set; of two ranks alone, by who asked for it: of all others -1.
    std::vector<std::pair<int, Verdict>> verdicts;
  };
  Actions tick(base::Clock::time_point now, const Roster& roster);
  // Is there anything to tick for?
  bool watching() const { return !reports_.empty(); }

  void add_to(base::Hasher& hasher) const;

 private:
  std::set<int> find_stuck(const Roster& roster) const;
  std::vector<int> missing(const OpenOperation& operation, const Roster& roster) const;
  bool is_stuck(const BlockedReport& report, const std::set<int>& among,
                const Roster& roster) const;
  std::vector<std::pair<int, Verdict>> judge(const std::set<int>& stuck,
                                             const Roster& roster) const;

  base::microseconds patience_;
  std::map<int, BlockedReport> reports_;  // of blocked ranks
  std::set<int> suspects_;
  std::map<int, std::uint64_t> suspect_versions_;
  base::Clock::time_point since_;
  std::uint64_t probe_ = 0;  // number of the last probe
  bool probing_ = false;
  std::set<int> unanswered_;
};

}  // namespace hvdlite::engine
