// Operations that move no data but change process sets, or end a join (the rest of Cycle is cycle.cc).

#include <algorithm>
#include <utility>

#include "engine/cycle.h"
#include "transport/host_window.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::OpKind;
using base::Status;

namespace {

// Ids are part of message tags, so there is a limit to how many sets live at once.
constexpr std::size_t kMaxSets = 1024;
// Tiles of one set's life fit below that; the epoch above makes those of the region's next user larger.
constexpr int kEpochShift = 40;

}  // namespace

void Cycle::settle_without_data(const Response& response, Entry& entry) {
  const bool mine = entry.request != nullptr;
  Status status;
  std::uint32_t created = 0;
  if (response.request->kind == OpKind::kJoin) {
    if (mine) {
      entry.completion->value = response.value;
      shared_.numbering.joined(entry.request->set);
    }
  } else if (response.request->kind == OpKind::kAddProcessSet) {
    if (sets_.size() >= kMaxSets) {
      status = {ErrorCode::kInvalidArgument,
                "there are " + std::to_string(kMaxSets) +
                    " process sets already; remove one before adding another"};
    } else {
      const SetId id = create_set(response.request->splits);
      created = id.epoch;
      if (mine) entry.completion->value = id.id;
    }
  } else {
    remove_set(response.request->root);
  }
  if (mine) finish({&entry, 1}, status);
  // Last, for a message that cannot be followed ends this engine, and what has been decided has to end before.
  if (created != 0) handle_early(created);
}

void Cycle::handle_early(std::uint32_t epoch) {
  const auto early = early_.find(epoch);
  if (early == early_.end()) return;
  auto messages = std::move(early->second);
  early_.erase(early);
  for (auto& [source, message] : messages) {
    const int from = source;
    std::visit([&](auto& content) { handle(from, content); }, message);
  }
}

SetId Cycle::create_set(const std::vector<std::int64_t>& ranks) {
  SetId id;
  if (free_set_ids_.empty()) {
    id.id = next_set_id_++;
  } else {
    id.id = free_set_ids_.front();
    free_set_ids_.pop_front();
  }
  id.epoch = ++last_epoch_;
  std::vector<int> members(ranks.begin(), ranks.end());
  std::sort(members.begin(), members.end());
  insert_set(id, std::move(members));
  return id;
}

void Cycle::insert_set(SetId id, std::vector<int> members) {
  auto set = std::make_unique<ProcessSet>();
  set->id = id;
  // Tags of a reused id start elsewhere, away from what may still be in flight of its predecessor.
  set->next_operation = id.epoch * 1024;
  set->members = std::make_shared<const std::vector<int>>(std::move(members));
  set->index = set->index_of(transport_.rank());
  if (set->index == 0) {
    set->coordinator = std::make_unique<Coordinator>(
        id, *set->members, shared_.config.cache_capacity, shared_.config.join_refuses_others);
  }
  if (const Region* first = share_memory(*set, set->shared)) make_accord(*set, *first);
  const std::size_t size = set->members->size();
  const collectives::SharedChannel* channel = set->shared.channel.get();
  const bool shares_memory = size == 1 || (channel && channel->size() == static_cast<int>(size));
  shared_.sets.add({id, set->members, set->index, shares_memory});
  membership_.add_set(id, set->members);
  sets_[id.id] = std::move(set);
}

// Gives the set regions of the window, the first free ones: one if all members are on one host; two if they are on several, of
// which one at least has several members. Which these are all ranks know, members or not. The first of them; null if it goes
// through messages.
const Cycle::Region* Cycle::share_memory(const ProcessSet& set, SharedRegions& shared) {
  std::vector<int> host_of;
  host_of.reserve(set.members->size());
  for (const int member : *set.members) host_of.push_back(transport_.host_of(member));
  auto hosts = std::make_shared<const collectives::HostMap>(host_of, set.index);
  const bool on_several = hosts->hosts() > 1;
  if (hosts->most() < 2 || (on_several && !transport_.windows_everywhere())) return nullptr;
  std::vector<Region*> regions;
  for (Region& region : regions_) {
    if (region.set < 0) regions.push_back(&region);
  }
  const std::size_t wanted = on_several ? 2 : 1;
  if (regions.size() < wanted) return nullptr;
  shared.channel = take_region(set, *regions[0]);
  if (on_several) {
    shared.second_channel = take_region(set, *regions[1]);
    shared.hosts = std::move(hosts);
  }
  return regions[0];
}

// Where all members are on this host they agree in the region's ledger.
void Cycle::make_accord(ProcessSet& set, const Region& region) {
  const collectives::SharedChannel* channel = set.shared.channel.get();
  if (!channel || set.shared.hosts || set.members->size() > Ledger::kMaxMembers) return;
  const auto place = static_cast<int>(&region - regions_.data());
  set.accord = std::make_unique<Accord>(transport_.window()->ledger(place), channel->size(),
                                        channel->index(), set.id.epoch);
}

// At the global set's first operation on GPU memory, which comes at the same place among all changes of sets, on all ranks. (Of
// other sets' those who are no members know nothing.)
void Cycle::share_staging_memory(ProcessSet& set) {
  if (set.id.id != 0 || std::exchange(set.asked_for_staging, true)) return;
  share_memory(set, set.staging);
}

std::shared_ptr<collectives::SharedChannel> Cycle::take_region(const ProcessSet& set,
                                                               Region& region) {
  region.set = set.id.id;
  std::vector<int> local,
      local_ranks;  // of the members on this host: places in the set, on the host
  for (std::size_t i = 0; i < set.members->size(); ++i) {
    const int member = (*set.members)[i];
    if (transport_.host_of(member) != transport_.host_of(transport_.rank())) continue;
    local.push_back(static_cast<int>(i));
    local_ranks.push_back(transport_.local_rank_of(member));
  }
  const std::uint64_t departures = region.users;
  region.users += local.size();
  const auto mine = std::find(local.begin(), local.end(), set.index);
  if (mine == local.end()) return nullptr;
  const auto index = static_cast<int>(mine - local.begin());
  return std::make_shared<collectives::SharedChannel>(
      *transport_.window(), static_cast<int>(&region - regions_.data()), std::move(local),
      std::move(local_ranks), index, std::uint64_t{set.id.epoch} << kEpochShift, departures);
}

// A rank agrees to the removal of a set when all that it has submitted there has ended, and submits nothing more to it. Otherwise
// one member could learn of the removal before, another after an operation was agreed, and wait for ever for the first.
bool Cycle::hold_removal(Entry& entry) {
  const auto found = sets_.find(entry.request->root);
  if (found == sets_.end()) return false;  // another thread was faster
  ProcessSet& set = *found->second;
  set.being_removed = true;
  if (!set.has_pending() && executor_.idle(set.id)) return false;
  held_removals_.push_back(std::move(entry));
  return true;
}

// True if any of those held need not be any more.
bool Cycle::resume_removals() {
  const std::size_t held = held_removals_.size();
  if (held == 0) return false;
  for (Entry& entry : std::exchange(held_removals_, {})) admit(std::move(entry));
  return held_removals_.size() != held;
}

// One that failed for all ranks while this one held it back (a deadlock, say). Without a request if there is none of that name.
Entry Cycle::take_held_removal(SetId set, const std::string& name) {
  const auto held = std::find_if(
      held_removals_.begin(), held_removals_.end(),
      [&](const Entry& entry) { return entry.request->set == set && entry.request->name == name; });
  if (held == held_removals_.end()) return {};
  Entry entry = std::move(*held);
  held_removals_.erase(held);
  return entry;
}

void Cycle::remove_set(std::int32_t id) {
  const auto found = sets_.find(id);
  if (found == sets_.end()) return;
  HVD_CHECK(!found->second->has_pending());
  shared_.sets.remove(id);
  membership_.remove_set(found->second->id);
  shared_.numbering.forget(found->second->id);
  executor_.forget(found->second->id);
  for (Region& region : regions_) {
    if (region.set == id) region.set = -1;
  }
  sets_.erase(found);
  free_set_ids_.push_back(id);
}

}  // namespace hvdlite::engine
