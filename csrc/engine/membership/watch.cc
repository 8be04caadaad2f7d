// Step 6 of the cycle: lost peers and deadlock (the rest of Cycle is cycle.cc, of stalls stall_watch.cc).

#include <algorithm>

#include "engine/cycle.h"

namespace hvdlite::engine {

using base::Clock;

namespace {

constexpr base::microseconds kWatchInterval{20'000};
// Behind a callback a program may go on or wait, and nobody sees which. It is taken to wait when nothing has been submitted and
// nothing has ended here for so many times the usual patience: longer than any step computes between two of its gradients.
constexpr double kUnseen = 300;

}  // namespace

void Cycle::watch() {
  const Clock::time_point now = shared_.usage.now();
  if (now - last_watch_ < kWatchInterval) return;
  last_watch_ = now;
  look_for_lost_peers();
  if (!shared_.failure.happened()) keep_in_touch(now);
  if (shared_.failure.happened()) return;
  inspect_stalls(now);
  if (shared_.failure.happened() || shared_.config.deadlock_timeout <= 0) return;
  report_if_blocked(now);
  act_on_deadlocks(now);
}

void Cycle::look_for_lost_peers() {
  int rank = 0;
  std::string how;
  while (!shared_.failure.happened() && transport_.find_lost_peer(&rank, &how)) {
    if (left_.contains(rank)) continue;
    peer_failed(rank, how);
    tell_other_hosts(rank, how);
  }
}

// Changes whenever this rank submitted something or something of it ended.
std::uint64_t Cycle::version() const {
  const Counters& counters = shared_.counters;
  return static_cast<std::uint64_t>(counters.submitted + counters.completed + counters.failed);
}

BlockedReport Cycle::blocked_report() {
  BlockedReport report;
  report.version = version();
  const std::int64_t watched = shared_.watched;
  const auto seen = shared_.waits.all_waiting();
  report.blocked = (seen || watched > 0) && !shared_.queue.due({}).has_value();
  if (!report.blocked) return report;
  auto awaited = seen.value_or(std::vector<CompletionPtr>());
  std::erase_if(awaited, [](const CompletionPtr& each) { return each->watcher != nullptr; });
  const auto is_awaited = [&](const CompletionPtr& completion) {
    return completion->watcher != nullptr ||
           std::find(awaited.begin(), awaited.end(), completion) != awaited.end();
  };
  std::int64_t found = 0;
  // Who waits to remove a set waits for all that it has submitted there.
  std::set<std::int32_t> removing;
  for (const Entry& entry : held_removals_) {
    const auto set = sets_.find(entry.request->root);
    if (!is_awaited(entry.completion) || set == sets_.end() || !set->second->has_pending()) {
      continue;
    }
    removing.insert(entry.request->root);
    ++found;
  }
  for (const auto& each : sets_) {
    const std::unique_ptr<ProcessSet>& set =
        each.second;  // Clang before 16 captures no structured binding
    const auto add = [&](const Entry& entry) {
      const Request& request = *entry.request;
      const bool awaited_itself = is_awaited(entry.completion);
      const bool waited_for = awaited_itself || removing.contains(set->id.id);
      found += awaited_itself ? 1 : 0;
      std::vector<std::int32_t> not_asking;
      for (const int member : *set->members) {
        if (!request.asks(member)) not_asking.push_back(member);
      }
      report.open.push_back({request.set, request.kind, request.name, request.group,
                             request.group_size, waited_for, std::move(not_asking)});
    };
    for (const auto& [name, pending] : set->pending) add(pending.entry);
    if (set->accord) set->accord->for_each(add);
  }
  // A caller that waits for data on its way, or has just been served, is not blocked by another rank's silence.
  report.blocked = found == watched + static_cast<std::int64_t>(awaited.size());
  if (!report.blocked) report.open.clear();
  return report;
}

void Cycle::report_if_blocked(Clock::time_point now) {
  const bool told = shared_.watched > 0;
  const bool blocked = (told || shared_.waits.all_waiting()) && transport_.size() > 1;
  if (blocked != blocked_ || version() != blocked_version_) {
    blocked_ = blocked;
    blocked_version_ = version();
    blocked_since_ = now;
    if (reported_) {
      reported_ = false;
      BlockedReport report;
      report.version = version();
      deliver(0, std::move(report));
    }
    return;
  }
  const double patience = shared_.config.deadlock_timeout / 2 * (told ? kUnseen : 1);
  if (!blocked_ || reported_ || base::seconds_between(blocked_since_, now) < patience) return;
  BlockedReport report = blocked_report();
  if (!report.blocked) return;
  reported_ = true;
  deliver(0, std::move(report));
}

void Cycle::act_on_deadlocks(Clock::time_point now) {
  if (!detector_ || !detector_->watching()) return;
  DeadlockDetector::Actions actions = detector_->tick(now);
  for (const int rank : actions.probe) deliver(rank, Probe{actions.number});
  for (Verdict& verdict : actions.verdicts) {
    const ProcessSet* set = find_set(verdict.set);
    if (set != nullptr) deliver(set->coordinator_rank(), std::move(verdict));
  }
}

void Cycle::handle(int source, BlockedReport& message) {
  if (detector_) detector_->report(source, std::move(message));
}

void Cycle::handle(int source, Probe& message) {
  HVD_CHECK(source == 0);
  BlockedReport report = blocked_report();
  report.probe = message.number;
  deliver(source, std::move(report));
}

void Cycle::handle(int source, Verdict& message) {
  HVD_CHECK(source == 0);
  ProcessSet* set = find_set(message.set);
  if (set == nullptr || !set->coordinator) return;
  if (set->accord && set->accord->ledger().exists()) {
    defer_verdict(*set, std::move(message));
  } else {
    set->coordinator->fail(message.names, {base::ErrorCode::kTimeout, message.text});
  }
}

}  // namespace hvdlite::engine
