// Operations that move no data but change process sets, or end a join (the rest of Cycle is cycle.cc).

#include <algorithm>

#include "engine/cycle.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::OpKind;
using base::Status;

namespace {

// Ids are part of message tags, so there is a limit to how many sets live at once.
constexpr std::size_t kMaxSets = 1024;

// Of the members on this host, each set in a region of its own. A region's flags count for ever, so a set whose id was
// another's before (ids and epochs have grown apart then) gets none.
std::shared_ptr<collectives::SharedChannel> make_channel(transport::Transport& transport,
                                                         const ProcessSet& set) {
  transport::HostWindow* const window = transport.window();
  if (window == nullptr || !set.is_member() || set.id.id >= window->regions() ||
      set.id.epoch != static_cast<std::uint32_t>(set.id.id) + 1) {
    return nullptr;
  }
  std::vector<int> members;
  std::vector<int> local_ranks;
  int index = 0;
  for (std::size_t i = 0; i < set.members->size(); ++i) {
    const int rank = (*set.members)[i];
    if (transport.host_of(rank) != transport.host_of(transport.rank())) continue;
    if (rank == transport.rank()) index = static_cast<int>(members.size());
    members.push_back(static_cast<int>(i));
    local_ranks.push_back(transport.local_rank_of(rank));
  }
  return std::make_shared<collectives::SharedChannel>(*window, set.id.id, std::move(members),
                                                      std::move(local_ranks), index);
}

}  // namespace

void Cycle::settle_without_data(const Response& response, Entry& entry) {
  const bool mine = entry.request != nullptr;
  Status status;
  if (response.request.kind == OpKind::kJoin) {
    if (mine) entry.completion->value = response.value;
  } else if (response.request.kind == OpKind::kAddProcessSet) {
    if (sets_.size() >= kMaxSets) {
      status = {ErrorCode::kInvalidArgument,
                "there are " + std::to_string(kMaxSets) +
                    " process sets already; remove one before adding another"};
    } else {
      const SetId id = create_set(response.request.splits);
      if (mine) entry.completion->value = id.id;
    }
  } else {
    remove_set(response.request.root);
  }
  if (mine) finish(entry, status);
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
  const auto early = early_.find(id.epoch);
  if (early != early_.end()) {
    auto messages = std::move(early->second);
    early_.erase(early);
    for (auto& [source, message] : messages) {
      const int from = source;
      std::visit([&](auto& content) { handle(from, content); }, message);
    }
  }
  return id;
}

void Cycle::insert_set(SetId id, std::vector<int> members) {
  auto set = std::make_unique<ProcessSet>();
  set->id = id;
  // Tags of a reused id start elsewhere, away from what may still be in flight of its predecessor.
  set->next_operation = id.epoch * 1024;
  set->members = std::make_shared<const std::vector<int>>(std::move(members));
  set->index = set->index_of(transport_.rank());
  set->channel = make_channel(transport_, *set);
  if (set->index == 0) {
    set->coordinator =
        std::make_unique<Coordinator>(id, *set->members, shared_.config.cache_capacity);
  }
  shared_.sets.add({id, set->members, set->index});
  sets_[id.id] = std::move(set);
}

void Cycle::remove_set(std::int32_t id) {
  const auto found = sets_.find(id);
  if (found == sets_.end()) return;
  fail_pending(*found->second,
               {ErrorCode::kInvalidArgument, "process set " + std::to_string(id) + " was removed"});
  shared_.sets.remove(id);
  sets_.erase(found);
  free_set_ids_.push_back(id);
}

}  // namespace hvdlite::engine
