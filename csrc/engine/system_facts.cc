// How blocked() decides whether this rank is blocked. Three conditions must hold:
//
//    1. All known threads wait (WaitRegistry), or an operation with a callback is in flight.
//    2. The queue is empty: passes have taken all entries.
//    3. Every awaited operation is found. These two words mean:
//       awaited   an operation whose submission has a callback; if all known threads wait, also one for which a thread waits
//       found     an awaited operation that is pending in Negotiation or unmatched in PointToPoint, or an awaited removal of
//                 a set that has operations pending in Negotiation or unfinished in PointToPoint
//
// An awaited operation that is not found is agreed or matched, or has just ended, or is a removal that waits only for agreed or
// matched operations. Such an operation ends without a request of any other rank, so this rank is not blocked.
//
// The report names all operations that are pending or unmatched, also those that are not awaited: if a report does not name a
// collective, rank 0 takes it for one that this rank has not submitted (deadlock.h). OpenOperation::waited_for is true for an
// awaited operation, and for an operation on a set whose removal is awaited and found.
#include "engine/system_facts.h"

#include <algorithm>
#include <set>

#include "base/process.h"

namespace hvdlite::engine {

namespace {

// The letters are the kernel's names of the states (/proc/PID/status). An unknown state gives no text, because a wrong text
// would mislead the user.
std::string describe_process(int pid) {
  switch (base::state_of_process(pid)) {
    case 'T':
      return "it is stopped (by SIGSTOP or SIGTSTP; SIGCONT lets it go on)";
    case 't':
      return "it is stopped by a debugger";
    case 'D':
      return "it waits in the kernel and cannot be interrupted, for example because a disk or a "
             "file server does not answer";
    case 'Z':
      return "it has ended, and its parent has not read its exit code";
    case 'R':
    case 'S':
      return "it runs, but its engine does not";
    default:
      return "";
  }
}

}  // namespace

std::string SystemFacts::state_of(int rank) {
  return describe_process(transport_.process_of(rank));
}

BlockedReport SystemFacts::blocked() {
  BlockedReport report;
  report.version = version();
  const std::int64_t watched = shared_.watched;
  const auto seen = shared_.waits.all_waiting();
  report.blocked = (seen || watched > 0) && !shared_.queue.due({}).has_value();
  if (!report.blocked) return report;
  auto awaited = seen.value_or(std::vector<CompletionPtr>());
  // `watched` already counts the operations with a callback.
  std::erase_if(awaited, [](const CompletionPtr& each) { return each->watcher != nullptr; });
  // Several threads may wait for one operation.
  std::ranges::sort(awaited);
  const auto repeated = std::ranges::unique(awaited);
  awaited.erase(repeated.begin(), repeated.end());
  const auto is_awaited = [&](const CompletionPtr& completion) {
    return completion->watcher != nullptr ||
           std::find(awaited.begin(), awaited.end(), completion) != awaited.end();
  };
  std::int64_t found = 0;
  // The sets whose removal is awaited and found. A caller that waits for such a removal waits for all operations that this rank
  // has submitted to the set.
  std::set<std::int32_t> removing;
  // A removal is held back until this rank's operations on the set have ended. If none of these operations is pending in
  // Negotiation or unfinished in PointToPoint, the removal waits only for data that move.
  for (const Entry& entry : negotiation_.held_removals()) {
    const SetNegotiation* set = negotiation_.find(entry.request->root);
    if (!is_awaited(entry.completion) || set == nullptr) continue;
    if (!set->has_pending() && !point_to_point_.waits(set->set().id)) continue;
    removing.insert(entry.request->root);
    ++found;
  }
  const auto add = [&](const Entry& entry) {
    const Request& request = *entry.request;
    const bool awaited_itself = is_awaited(entry.completion);
    const bool waited_for = awaited_itself || removing.contains(request.set.id);
    found += awaited_itself ? 1 : 0;
    std::vector<std::int32_t> not_asking;
    for (const int member : *negotiation_.find(request.set.id)->set().members) {
      if (!request.asks(member)) not_asking.push_back(member);
    }
    report.open.push_back({request.set, request.kind, request.name, request.group,
                           request.group_size, waited_for, std::move(not_asking), request.root,
                           request.tag});
  };
  negotiation_.for_each_set([&](const SetNegotiation& set) { set.for_each_pending(add); });
  point_to_point_.for_each_unmatched(add);
  report.blocked = found == watched + static_cast<std::int64_t>(awaited.size());
  if (!report.blocked) report.open.clear();
  return report;
}

// Entries of Execution that have no request are left out: they belong to no caller of this rank, for example because the rank
// has joined.
void SystemFacts::for_each_unfinished(const Visit& visit) {
  const auto open = [&](const Entry& entry) {
    visit(*entry.request, entry.completion->record, false);
  };
  negotiation_.for_each_set([&](const SetNegotiation& set) { set.for_each_pending(open); });
  std::ranges::for_each(negotiation_.held_removals(), open);
  point_to_point_.for_each_unmatched(open);
  point_to_point_.for_each_answered(
      [&](const Entry& entry) { visit(*entry.request, entry.completion->record, true); });
  execution_.for_each([&](const Entry& entry) {
    if (entry.request) visit(*entry.request, entry.completion->record, true);
  });
}

}  // namespace hvdlite::engine
