// What Membership asks of this rank: how its operations stand, and what the transport and the kernel see of others.

#include <algorithm>

#include "base/process.h"
#include "engine/cycle.h"

namespace hvdlite::engine {

namespace {

std::string describe_process(int pid) {
  switch (base::state_of_process(pid)) {
    case 'T':
      return "it is stopped (by SIGSTOP or SIGTSTP; SIGCONT lets it go on)";
    case 't':
      return "it is stopped by a debugger";
    case 'D':
      return "it sleeps in the kernel and cannot be interrupted, as on a disk or file server that "
             "is gone";
    case 'Z':
      return "it has ended, and nobody has asked how";
    case 'R':
    case 'S':
      return "it runs, but its engine does not";
    default:
      return "";
  }
}

}  // namespace

class Cycle::Facts final : public Membership::Facts {
 public:
  explicit Facts(Cycle& cycle) : cycle_(cycle) {}

  bool find_lost(int* rank, std::string* how) override {
    return cycle_.transport_.find_lost_peer(rank, how);
  }
  std::uint64_t received_from(int rank) override { return cycle_.transport_.received_from(rank); }
  std::uint64_t activity() override { return cycle_.transport_.activity(); }
  std::uint64_t version() override {
    const Counters& counters = cycle_.shared_.counters;
    return static_cast<std::uint64_t>(counters.submitted + counters.completed + counters.failed);
  }
  bool all_wait() override { return cycle_.shared_.waits.all_waiting().has_value(); }
  bool callbacks_wait() override { return cycle_.shared_.watched > 0; }
  BlockedReport blocked() override;
  std::uint64_t newest() override { return cycle_.shared_.recorder.newest(); }
  void for_each_unfinished(const Visit& visit) override;
  bool has_joined(SetId id) override {
    const ProcessSet* set = cycle_.find_set(id);
    return set != nullptr && cycle_.has_joined(*set);
  }
  double unexcused(base::Clock::time_point now) override {
    return cycle_.shared_.excuse.over_for(now);
  }
  bool ask_where() override { return cycle_.shared_.watchdog.ask(); }
  std::optional<std::string> take_where() override { return cycle_.shared_.watchdog.take(); }
  std::string state_of(int rank) override {
    return describe_process(cycle_.transport_.process_of(rank));
  }

 private:
  Cycle& cycle_;
};

std::unique_ptr<Membership::Facts> Cycle::make_facts() { return std::make_unique<Facts>(*this); }

BlockedReport Cycle::Facts::blocked() {
  BlockedReport report;
  report.version = version();
  const std::int64_t watched = cycle_.shared_.watched;
  const auto seen = cycle_.shared_.waits.all_waiting();
  report.blocked = (seen || watched > 0) && !cycle_.shared_.queue.due({}).has_value();
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
  for (const Entry& entry : cycle_.held_removals_) {
    const auto set = cycle_.sets_.find(entry.request->root);
    if (!is_awaited(entry.completion) || set == cycle_.sets_.end() || !set->second->has_pending()) {
      continue;
    }
    removing.insert(entry.request->root);
    ++found;
  }
  for (const auto& each : cycle_.sets_) {
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

void Cycle::Facts::for_each_unfinished(const Visit& visit) {
  const auto open = [&](const Entry& entry) {
    visit(*entry.request, entry.completion->record, false);
  };
  for (const auto& [id, set] : cycle_.sets_) {
    for (const auto& [name, pending] : set->pending) open(pending.entry);
    if (set->accord) set->accord->for_each(open);
  }
  std::ranges::for_each(cycle_.held_removals_, open);
  cycle_.executor_.for_each([&](const Entry& entry) {
    if (entry.request) visit(*entry.request, entry.completion->record, true);
  });
}

}  // namespace hvdlite::engine
