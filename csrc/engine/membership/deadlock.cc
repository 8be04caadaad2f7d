// tick() computes the stuck ranks anew at each call. It compares them, and the versions of their reports, with suspects_:
//
//    different                                     store the new ones in suspects_, and start the time anew
//    equal, and no rank is stuck                   nothing
//    equal, for less than patience_                nothing
//    equal, for patience_, and not probed          send a probe to each stuck rank
//    equal, probed, and an answer is missing       nothing
//    equal, probed, and all answers are there      verdicts
//
// An answer to a probe is a report, and report() stores it like any other. So an answer that says "not blocked", or has another
// version, makes the next comparison "different". Then no verdict follows from this probe.
//
// How find_stuck() removes ranks. An example: ranks 0 and 1 form a process set, and ranks 2 and 3 form another one.
//
//    rank 0    waits for operation a, which is missing on rank 1
//    rank 1    waits for operation b, which is missing on rank 0
//    rank 2    computes: it has sent no report
//    rank 3    waits for operation c, which is missing on rank 2
//
// The search begins with the ranks 0, 1 and 3. Rank 3 is removed, because rank 2 is not among them and may still submit c. The
// ranks 0 and 1 stay, because each lacks what the other waits for. When a rank is removed, others may have to be removed, too.
// So the search goes over the remaining ranks again until it finds no rank to remove.
//
// Which verdicts judge() makes. An example: of the stuck ranks, rank 2 waits for an allreduce of set 0 that rank 3 lacks, and
// rank 3 waits for a receive from rank 2 on set 0. The keys of `doomed` are then:
//
//    (-1, set 0)    the allreduce: a verdict for the first member of set 0, which coordinates the set
//    (3, set 0)     the receive: a verdict for rank 3
//
// All verdicts have the same text, so that the error on each rank tells of all stuck ranks.
#include "engine/membership/deadlock.h"

#include <algorithm>
#include <utility>

#include "engine/model/text.h"

namespace hvdlite::engine {
namespace {

Request as_request(const OpenOperation& operation) {
  Request request;
  request.set = operation.set;
  request.kind = operation.kind;
  request.name = operation.name;
  request.root = operation.root;
  request.tag = operation.tag;
  return request;
}

// Is the operation a receive from any rank? Such a receive can complete as soon as one of the ranks on which it is missing
// submits a send. Any other operation needs all ranks on which it is missing.
bool takes_any(const OpenOperation& operation) {
  return operation.kind == base::OpKind::kRecv && operation.root == kAny;
}

// Does a rank with these open operations take part in `wanted`? The rank does if it has asked for the operation and the
// operation's whole group, or has joined.
bool takes_part(const std::vector<OpenOperation>& open, const OpenOperation& wanted) {
  if (base::is_point_to_point(wanted.kind))
    return false;  // an open send or receive is one whose counterpart is missing
  bool named = false;
  int in_group = 0;
  for (const OpenOperation& operation : open) {
    if (operation.set != wanted.set) continue;
    if (operation.kind == base::OpKind::kJoin && wanted.kind != base::OpKind::kJoin) return true;
    named = named || operation.name == wanted.name;
    if (!wanted.group.empty() && operation.group == wanted.group) ++in_group;
  }
  return named && (wanted.group.empty() || in_group >= wanted.group_size);
}

// Can the operation complete although the stuck ranks submit nothing more? lacking: the ranks on which the operation is
// missing.
bool can_complete(const OpenOperation& operation, const std::vector<int>& lacking,
                  const std::set<int>& stuck) {
  const auto is_stuck = [&](int rank) { return stuck.contains(rank); };
  return takes_any(operation) ? !std::ranges::all_of(lacking, is_stuck)
                              : std::ranges::none_of(lacking, is_stuck);
}

}  // namespace

void DeadlockDetector::report(int rank, BlockedReport report) {
  if (report.probe != 0 && report.probe == probe_) unanswered_.erase(rank);
  if (!report.blocked) {
    reports_.erase(rank);
    return;
  }
  reports_[rank] = std::move(report);
}

std::vector<int> DeadlockDetector::missing(const OpenOperation& operation,
                                           const Roster& roster) const {
  std::vector<int> ranks;
  for (const int member : roster.members_of(operation.set)) {
    if (std::ranges::find(operation.not_asking, member) != operation.not_asking.end()) continue;
    const auto report = reports_.find(member);
    if (report == reports_.end() || !takes_part(report->second.open, operation)) {
      ranks.push_back(member);
    }
  }
  return ranks;
}

bool DeadlockDetector::is_stuck(const BlockedReport& report, const std::set<int>& among,
                                const Roster& roster) const {
  bool waits = false;
  for (const OpenOperation& operation : report.open) {
    if (!operation.waited_for) continue;
    waits = true;
    // One operation that can complete is enough: when it completes, the rank may go on and submit what others lack.
    if (can_complete(operation, missing(operation, roster), among)) return false;
  }
  return waits;
}

std::set<int> DeadlockDetector::find_stuck(const Roster& roster) const {
  std::set<int> stuck;
  for (const auto& [rank, report] : reports_) stuck.insert(rank);
  for (bool changed = true; changed;) {
    changed = false;
    for (auto rank = stuck.begin(); rank != stuck.end();) {
      if (is_stuck(reports_.at(*rank), stuck, roster)) {
        ++rank;
      } else {
        rank = stuck.erase(rank);
        changed = true;
      }
    }
  }
  return stuck;
}

DeadlockDetector::Actions DeadlockDetector::tick(base::Clock::time_point now,
                                                 const Roster& roster) {
  Actions actions;
  const std::set<int> stuck = find_stuck(roster);
  std::map<int, std::uint64_t> versions;
  for (const int rank : stuck) versions[rank] = reports_.at(rank).version;
  if (versions != suspects_) {
    suspects_ = std::move(versions);
    since_ = now;
    probing_ = false;
  }
  if (stuck.empty()) return actions;
  if (!probing_) {
    if (now - since_ < patience_) return actions;
    probing_ = true;
    actions.number = ++probe_;
    unanswered_ = stuck;
    actions.probe.assign(stuck.begin(), stuck.end());
    return actions;
  }
  // A rank whose answer is missing may have gone on in the meantime. So there is no verdict before all have answered.
  if (!unanswered_.empty()) return actions;
  actions.verdicts = judge(stuck, roster);
  for (const int rank : stuck) reports_.erase(rank);
  suspects_.clear();
  probing_ = false;
  return actions;
}

std::vector<std::pair<int, Verdict>> DeadlockDetector::judge(const std::set<int>& stuck,
                                                             const Roster& roster) const {
  std::string text =
      "deadlock: ranks wait for operations that other waiting ranks have not "
      "submitted:";
  std::map<std::pair<int, SetId>, std::set<std::string>> doomed;
  bool pairs = false, others = false;
  for (const int rank : stuck) {
    std::string waits;
    for (const OpenOperation& operation : reports_.at(rank).open) {
      std::vector<int> lacking = missing(operation, roster);
      if (lacking.empty() || can_complete(operation, lacking, stuck)) continue;
      const bool of_two = base::is_point_to_point(operation.kind);
      // An operation that can never complete gets a verdict even if no caller waits for it. The text names only the operations
      // for which a caller waits.
      doomed[{of_two ? rank : -1, operation.set}].insert(operation.name);
      if (!operation.waited_for) continue;
      (of_two ? pairs : others) = true;
      waits += (waits.empty() ? " " : " and ") + describe(as_request(operation));
      if (!operation.group.empty()) waits += " (group '" + operation.group + "')";
      // A rank without a report may have asked for the operation, so the text does not name that rank.
      std::erase_if(lacking, [&](int each) { return !reports_.contains(each); });
      waits += ", missing on " + format_ranks(lacking);
    }
    text += " rank " + std::to_string(rank) + " waits for" + waits + ";";
  }
  if (others || !pairs) {
    text += " submit the same operations under the same names on every rank of the process set";
  }
  if (pairs) {
    text += std::string(others ? ", and" : "") +
            " let each send and each receive find its counterpart (rank and tag) before both ranks "
            "wait: start them with isend and irecv, or in one batch";
  }
  std::vector<std::pair<int, Verdict>> verdicts;
  verdicts.reserve(doomed.size());
  for (auto& [whose, names] : doomed) {
    const auto& [rank, set] = whose;
    // The set has members, because only members are in `lacking`, which was not empty.
    verdicts.emplace_back(rank >= 0 ? rank : roster.members_of(set).front(),
                          Verdict{set, {names.begin(), names.end()}, text, rank >= 0});
  }
  return verdicts;
}

}  // namespace hvdlite::engine
