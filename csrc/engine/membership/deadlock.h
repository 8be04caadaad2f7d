// Finds ranks that wait for each other for ever. A pure state machine: reports go in, probes and verdicts come out.
// Thread: one at a time. Owns: the last report of each blocked rank. Blocks: no. Throws: std::bad_alloc.
//
// A rank is blocked when all its known threads (WaitRegistry) wait, and nothing that they wait for is agreed. (If operations
// run callbacks, waiting.cc says when the rank counts as blocked.) A set of blocked ranks (not a process set) is stuck if each
// operation for which a rank of this set waits is missing on a rank of this set. An operation is missing on a rank that has not
// submitted it. If a rank has submitted only some operations of a group, all operations of the group are missing on that rank.
// If the operation is a receive from any rank, one such rank is not enough: all ranks that could send must be in this set of
// ranks.
//
// The detector finds the largest stuck set, and calls its ranks the stuck ranks: it begins with all blocked ranks, and removes
// ranks until the remaining ranks are a stuck set. Reports take time to travel, so the detector checks its finding, the set of
// the stuck ranks. The finding must hold for a while. Then the detector probes every stuck rank, and each must answer that
// nothing has changed since its report. Ranks get stuck, for example, if a tensor is missing on a rank, if a name is misspelt,
// or if operations of one name differ in kind. Source: the graph reduction in Holt, Some deadlock properties of computer
// systems (ACM Computing Surveys 4, 1972).
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
  // patience: how long a finding must hold before the ranks are probed.
  explicit DeadlockDetector(base::microseconds patience) : patience_(patience) {}

  // Replaces the rank's last report. A report that says "not blocked" only removes the last report. A report may also answer a
  // probe.
  void report(int rank, BlockedReport report);

  struct Actions {
    std::vector<int> probe;    // ranks to ask whether they are still blocked
    std::uint64_t number = 0;  // the number of that probe, which the answers must have
    // Verdicts on the operations that can never complete, each with the rank to which the verdict goes. Of these operations,
    // all collectives of a process set share one verdict, for the set's coordinator. All sends and receives that one rank
    // asked for on a set share one verdict, for that rank. When tick() returns verdicts, the detector has forgotten the
    // reports of the stuck ranks.
    std::vector<std::pair<int, Verdict>> verdicts;
  };
  Actions tick(base::Clock::time_point now, const Roster& roster);
  // Does tick() have anything to do?
  bool watching() const { return !(reports_.empty() && suspects_.empty()); }

 private:
  std::set<int> find_stuck(const Roster& roster) const;
  // The members that have to ask for the operation and whose reports do not have it. A member without a report counts as one
  // that has not asked.
  std::vector<int> missing(const OpenOperation& operation, const Roster& roster) const;
  bool is_stuck(const BlockedReport& report, const std::set<int>& among,
                const Roster& roster) const;
  std::vector<std::pair<int, Verdict>> judge(const std::set<int>& stuck,
                                             const Roster& roster) const;

  base::microseconds patience_;
  std::map<int, BlockedReport> reports_;   // of blocked ranks
  std::map<int, std::uint64_t> suspects_;  // the stuck ranks, with the versions of their reports
  base::Clock::time_point since_;          // the tick at which these suspects were found
  std::uint64_t probe_ = 0;                // number of the last probe
  bool probing_ = false;                   // the last probe asked about these suspects
  std::set<int> unanswered_;               // suspects that have not answered it
};

}  // namespace hvdlite::engine
