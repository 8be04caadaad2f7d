// Negotiation gives each entry and message to its set, and calls all sets in each pass and when ranks end. set_changes.cc and
// digest.cc have the rest. The steps of a pass (advance):
//
//    1  resume_removals    asks again for removals that were held back
//    2  announce           each set announces its entries, and executes what is agreed at its port
//    3  coordinate         the sets whose coordinator is on this rank send what it has decided
//
// In step 2 the announcements of this rank reach a coordinator on this rank at once (deliver). So an operation that lacked
// only this rank can be decided and sent in the same pass.
//
// Which functions are called when ranks end:
//
//    another rank says goodbye    catch_up(), then left()
//    this rank leaves             close() until it returns true, then leave(). When a coordinator that leave() returned has
//                                 answered the goodbye or has said goodbye itself: fail_undecided(). In the end stop_reading()
//    this rank fails              abandon() at the first failure, then end_all()
//
// A step of set 0 may carry out a change that adds or removes other sets, while a loop goes over sets_. Such a loop stays
// correct: at that moment it is at set 0, whose element stays in the map, and no step of another set adds or removes sets.
#include "engine/negotiation/negotiation.h"

#include <numeric>

#include "engine/model/text.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::OpKind;
using base::Status;

Negotiation::Negotiation(const Settings& settings, int ranks, Regions regions, Counters& counters,
                         Effects& effects)
    : settings_(settings),
      counters_(counters),
      effects_(effects),
      regions_(std::move(regions)),
      left_(static_cast<std::size_t>(ranks), false) {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  // The first set gets the id 0. This set is never removed and keeps its port, so agrees_in_memory_ stays right.
  create_set(std::move(all));
  agrees_in_memory_ = sets_.begin()->second->agrees_in_memory();
}

// A new set may have the id of a removed one. The epoch tells them apart, so that no message reaches the wrong set.
SetNegotiation* Negotiation::find(SetId id) const {
  const auto found = sets_.find(id.id);
  return found != sets_.end() && found->second->set().id == id ? found->second.get() : nullptr;
}

const SetNegotiation* Negotiation::find(std::int32_t set) const {
  const auto found = sets_.find(set);
  return found != sets_.end() ? found->second.get() : nullptr;
}

// --- what this rank asks ----------------------------------------------------------------------------------------------

// A removal that was held back comes here again (resume_removals), and is checked again: since the first check this rank may
// have joined.
void Negotiation::admit(Entry& entry) {
  const Request& request = *entry.request;
  SetNegotiation* set = find(request.set);
  const Status why_not = refusal(set, request);
  if (!why_not.ok()) {
    finish({&entry, 1}, why_not);
  } else if (request.kind != OpKind::kRemoveProcessSet || !hold_removal(entry)) {
    set->admit(entry);
  }
}

Status Negotiation::refusal(const SetNegotiation* set, const Request& request) const {
  // The set was removed after the caller submitted the request.
  if (set == nullptr) {
    return {ErrorCode::kInvalidArgument, describe(request) + ": " + kRemovedSet};
  }
  if (said_goodbye_) return {ErrorCode::kAborted, describe(request) + ": " + kShutDownHere};
  return set->refusal(request);
}

bool Negotiation::advance() {
  bool any = !held_removals_.empty() && resume_removals();
  visit_sets([&](SetNegotiation& set) { any = set.announce() || any; });
  return coordinate() || any;
}

bool Negotiation::coordinate() {
  if (said_goodbye_) return false;  // the other ranks know that this rank decides nothing more
  bool any = false;
  visit_sets([&](SetNegotiation& set) { any = set.coordinate() || any; });
  return any;
}

// --- messages ---------------------------------------------------------------------------------------------------------

// Transports carry no message from a rank to itself. A coordinator that has left answers nothing.
void Negotiation::deliver(int rank, Announcement message) {
  if (rank == settings_.rank) {
    hear(rank, std::move(message));
  } else if (!has_left(rank)) {
    effects_.send(rank, std::move(message));
  }
}

// This rank follows its own list without a message (SetNegotiation::send_decisions).
void Negotiation::tell_members(const ProcessSet& set, const Message& message) {
  for (const int member : *set.members) {
    if (member != settings_.rank && !has_left(member)) effects_.send(member, message);
  }
}

void Negotiation::hear(int source, Verdict message) {
  // Only rank 0 looks for deadlocks. The set may have been removed meanwhile.
  HVD_CHECK(source == 0);
  if (SetNegotiation* set = find(message.set)) set->hear(std::move(message));
}

// --- endings ----------------------------------------------------------------------------------------------------------

void Negotiation::finish(std::span<const Entry> entries, const Status& status) {
  // `root` is the id of the set that was to be removed.
  for (const Entry& entry : entries) {
    if (status.ok() || !entry.request || entry.request->kind != OpKind::kRemoveProcessSet) continue;
    const auto kept = sets_.find(entry.request->root);
    if (kept != sets_.end()) kept->second->removing(false);
  }
  effects_.finish(entries, status);
}

void Negotiation::catch_up() {
  // Execute what the leaving rank took part in, and the lists that it sent, before it counts as gone.
  visit_sets([](SetNegotiation& set) { set.catch_up(); });
  // The leaving rank must receive the decisions in which it takes part, while it still receives messages.
  coordinate();
}

void Negotiation::left(int rank, const Status& why) {
  left_[static_cast<std::size_t>(rank)] = true;
  for (auto& [id, set] : sets_) set->left(rank, why);
}

// Does not stop at the first set that is not closed yet. So the closings of several ports take place at the same time.
bool Negotiation::close() {
  bool all = true;
  visit_sets([&](SetNegotiation& set) { all = set.close() && all; });
  return all;
}

std::set<int> Negotiation::leave(const Status& why) {
  // From here on this rank decides nothing, and takes part in others' operations as a rank that has joined.
  said_goodbye_ = true;
  finish(std::exchange(held_removals_, {}), why);
  // A set keeps those announced entries that its coordinator has perhaps decided already. If the set ended them, other ranks
  // would wait for this rank in these operations.
  std::set<int> undecided;
  for (auto& [id, set] : sets_) {
    if (set->leave(why)) undecided.insert(set->set().coordinator_rank());
  }
  return undecided;
}

void Negotiation::fail_undecided(int coordinator, const Status& why) {
  for (auto& [id, set] : sets_) {
    if (set->set().coordinator_rank() != coordinator) continue;
    set->catch_up();  // its last lists have arrived, but may wait for their place in the log
    set->fail_pending(why);
  }
}

void Negotiation::stop_reading() {
  for (auto& [id, set] : sets_) set->stop_reading();
}

void Negotiation::abandon() {
  for (auto& [id, set] : sets_) set->abandon();
}

void Negotiation::end_all(const Status& why) {
  for (auto& [id, set] : sets_) finish(set->take_pending(), why);
  finish(std::exchange(held_removals_, {}), why);
}

// --- questions --------------------------------------------------------------------------------------------------------

// Removals that this rank holds back do not count: no other rank knows of them, and each waits only until this rank's
// operations on its set have ended.
bool Negotiation::has_pending() const {
  return std::ranges::any_of(sets_, [](const auto& each) { return each.second->has_pending(); });
}

bool Negotiation::tries_again() const {
  return std::ranges::any_of(sets_, [](const auto& each) { return each.second->tries_again(); });
}

bool Negotiation::is_removing(SetId id) const {
  const SetNegotiation* set = find(id);
  return set != nullptr && set->is_being_removed();
}

bool Negotiation::has_joined(SetId id) const {
  const SetNegotiation* set = find(id);
  return set != nullptr && set->has_joined();
}

}  // namespace hvdlite::engine
