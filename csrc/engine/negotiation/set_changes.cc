// Those functions of Negotiation that are for changes of process sets, for the regions for staged GPU tensors, and for the end
// of a join. negotiation.cc and digest.cc have the rest.
//
// Changes of sets are operations of set 0. Every rank carries them out at the same place in the order of set 0, also a rank
// that is no member of the changed set. The same function (carry_out) also ends the joins of all sets:
//
//    request               before the agreement                        when it is agreed (carry_out)
//    add_process_set       -                                           create_set, then handle_early
//    remove_process_set    held back until this rank has nothing       remove_set
//                          left on the set (hold_removal)
//    join, of any set      -                                           the entry gets the rank that joined last
//
// All ranks give a new set the same id, the same epoch and the same regions of the window, and need no message for that,
// because all three depend only on earlier operations of set 0: freed ids are used again in the order in which they became
// free, each new set gets the next epoch, and Regions is a table that all ranks change in the same way.
//
// One rank may carry out a change before another. So a message about a new set can arrive at a rank that does not know the set
// yet. The rank keeps the message under the set's epoch (Negotiation::hear), and handles it when it has created the set.

#include <algorithm>
#include <utility>

#include "engine/negotiation/negotiation.h"
#include "engine/negotiation/replicated_ledger.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::OpKind;
using base::Status;

namespace {

// Message tags contain set ids, so the number of sets at a time is limited. kSetBits (execution/operation.cc) depends on this
// limit.
constexpr std::size_t kMaxSets = 1024;

}  // namespace

// `entry` has no request on a rank that has not asked (Request::asks).
void Negotiation::carry_out(const Response& response, Entry& entry) {
  const bool mine = entry.request != nullptr;
  Status status;
  std::uint32_t created = 0;
  if (response.request->kind == OpKind::kJoin) {
    if (mine) {
      entry.completion->value = response.value;
      effects_.joined(entry.request->set);
    }
  } else if (response.request->kind == OpKind::kRemoveProcessSet) {
    remove_set(response.request->root);
  } else if (sets_.size() >= kMaxSets) {
    // Every rank has all sets in sets_, so this fails on all ranks or on none.
    status = {ErrorCode::kInvalidArgument,
              describe(*response.request) + ": there are " + std::to_string(kMaxSets) +
                  " process sets already, including the set of all ranks; remove one before "
                  "adding another"};
  } else {
    const auto& ranks = response.request->splits;
    const SetId id = create_set({ranks.begin(), ranks.end()});
    created = id.epoch;
    if (mine) entry.completion->value = id.id;
  }
  if (mine) finish({&entry, 1}, status);
  // This is the last step: a bad early message fails this engine, and this operation must end before that.
  if (created != 0) handle_early(created);
}

// Handles messages that came for a set of this epoch before this rank knew the set.
void Negotiation::handle_early(std::uint32_t epoch) {
  auto early = early_.extract(epoch);
  if (early.empty()) return;
  for (auto& [source, message] : early.mapped()) {
    std::visit([&](auto& content) { hear(source, std::move(content)); }, message);
  }
}

// Every rank calls this, also a rank that is no member: regions_ must change on all ranks. The set gets copies of a ledger only
// if its members share no ledger in memory.
SetId Negotiation::create_set(std::vector<int> members) {
  ProcessSet set;
  if (free_set_ids_.empty()) {
    set.id.id = next_set_id_++;
  } else {
    set.id.id = free_set_ids_.front();
    free_set_ids_.pop_front();
  }
  set.id.epoch = ++last_epoch_;
  std::ranges::sort(members);
  set.members = std::make_shared<const std::vector<int>>(std::move(members));
  set.index = set.index_of(settings_.rank);
  auto port = effects_.add_set(set, regions_.take(set.id.id, *set.members));
  if (!port) port = replicate(set);
  const SetId id = set.id;
  sets_[id.id] = std::make_unique<SetNegotiation>(*this, std::move(set), std::move(port));
  return id;
}

// A port for members that share no ledger in memory. Null if there are too many members (Settings::ledger_copies), if there is
// only one, or if this rank is no member.
std::unique_ptr<Agreement> Negotiation::replicate(const ProcessSet& set) {
  const int most = static_cast<int>(
      std::min(settings_.ledger_copies, static_cast<std::size_t>(ReplicatedLedger::kMaxMembers)));
  if (!set.is_member() || set.size() < 2 || set.size() > most) return nullptr;
  const auto tell = [this, members = set.members](int member, const LedgerSteps& steps) {
    effects_.send((*members)[static_cast<std::size_t>(member)], steps);
  };
  auto port = std::make_unique<ReplicatedLedger>(set.id, set.size(), set.index, tell);
  for (int member = 0; member < set.size(); ++member) {
    // A rank that left before the set was created sends no messages for it, so this copy must not wait for them.
    if (has_left((*set.members)[static_cast<std::size_t>(member)])) port->left(member);
  }
  return port;
}

// A removal destroys the set with its entries, and their callers would wait for ever. So a decision to remove the set is an
// error while this rank has entries there that are not agreed. A correct coordinator never makes such a decision, because this
// rank asks for the removal only when it has no such entry (hold_removal).
bool Negotiation::may_remove(std::int32_t id) const {
  const SetNegotiation* set = find(id);
  return set == nullptr || !set->has_pending();
}

void Negotiation::remove_set(std::int32_t id) {
  const auto found = sets_.find(id);
  // Two removals of one set were agreed, and the first one has removed it.
  if (found == sets_.end()) return;
  HVD_CHECK(may_remove(id));
  effects_.remove_set(found->second->set().id);
  // From here on a new set may get these regions. The new set's port begins only when all members of the removed set have left
  // the memory (begin).
  regions_.give_back(id);
  sets_.erase(found);
  free_set_ids_.push_back(id);
}

// This rank asks for a set's removal only when all of its operations on the set have ended, and it submits nothing more to the
// set. Without this rule, one member could carry out the removal while another waited for ever for an operation that both had
// agreed on. Returns true, and takes the entry, if the removal has to be held back.
bool Negotiation::hold_removal(Entry& entry) {
  const auto found = sets_.find(entry.request->root);
  if (found == sets_.end()) return false;  // another thread removed it first
  SetNegotiation& set = *found->second;
  // From here on the set refuses requests, so the removal is not held back for ever.
  set.removing(true);
  if (!set.has_pending() && effects_.idle(set.set().id)) return false;
  held_removals_.push_back(std::move(entry));
  return true;
}

// Admits the held removals again. Returns true if at least one is not held back again.
bool Negotiation::resume_removals() {
  const std::size_t held = held_removals_.size();
  for (Entry& entry : std::exchange(held_removals_, {})) admit(entry);
  return held_removals_.size() != held;
}

// Takes a removal that failed for all ranks (for example, because of a deadlock) while this rank held it back. Returns an entry
// without a request if there is none.
Entry Negotiation::take_held_removal(SetId set, const std::string& name) {
  const auto held = std::ranges::find_if(held_removals_, [&](const Entry& entry) {
    return entry.request->set == set && entry.request->name == name;
  });
  if (held == held_removals_.end()) return {};
  Entry entry = std::move(*held);
  held_removals_.erase(held);
  return entry;
}

// Called at each GPU operation of the set of all ranks; only the first call takes regions. The first such operation has the
// same place among the changes of sets on all ranks, so regions_ stays equal on all of them. Operations of other sets have no
// such place, because ranks outside a set do not see them.
void Negotiation::share_staging() {
  if (std::exchange(asked_for_staging_, true)) return;
  const ProcessSet& all = find(0)->set();
  effects_.share_staging(all.id, regions_.take(all.id.id, *all.members));
}

}  // namespace hvdlite::engine
