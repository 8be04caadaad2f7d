// The way of an entry from admit() to its end. The entry lies in local_units_ or in pending_, and never in both:
//
//    admit() ──► local_units_ ──► complete in the port's log ──► execute (set_port.cc)
//      │             │
//      │             │ the port leaves it to the coordinator, a decision of the coordinator names it, or this rank joins
//      │             ▼
//      └───────► pending_ ──► Announcement ──► ResponseList ──► execute, or end with an error
//      no port, a join, or an
//      operation that is no unit
//
// follow() carries out one response list:
//
//    1  for each decision:   the response cache learns it (remember). If local_units_ still has the entry, the entry moves to
//                            pending_ (withdraw). Then the decision is compared with the entry, unless it is an error
//                            (check_mine).
//    2  plan_fusion() cuts the list into FusedOps
//    3  for each FusedOp:    its entries leave pending_. Then it is executed, ends with its error, or is carried out as a
//                            change of sets or the end of a join
//
// withdraw comes before the comparison, because check_mine and take_entry look for entries in pending_. Step 1 is complete
// before step 3 begins. So if one decision does not fit its entry, none of the list's operations has begun. If a list contains
// a name twice, only step 3 finds that (check_absence).
//
// All members do the same: they follow the same lists in the same order, and plan_fusion is a pure function. If a member has
// joined and has no entry for an operation, it executes the same FusedOp with an empty entry in the place of that operation.
#include "engine/negotiation/set_negotiation.h"

#include <algorithm>
#include <utility>

#include "engine/model/text.h"
#include "engine/negotiation/check_received.h"
#include "engine/negotiation/fusion_planner.h"
#include "engine/negotiation/negotiation.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::OpKind;
using base::Status;

SetNegotiation::SetNegotiation(Negotiation& all, ProcessSet set, std::unique_ptr<Agreement> port)
    : all_(all), set_(std::move(set)), port_(std::move(port)) {
  if (set_.index != 0) return;
  coordinator_ = std::make_unique<Coordinator>(
      set_.id, *set_.members, all_.settings_.cache_capacity, all_.settings_.join_refuses_others);
  closings_of_.resize(set_.members->size());
}

// --- what this rank asks ----------------------------------------------------------------------------------------------

Status SetNegotiation::refusal(const Request& request) const {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    return Status{code, describe(request) + ": " + why};
  };
  if (!broken_.ok()) return refuse(broken_.code, broken_.message);
  if (!pending_.empty() && pending_.contains(kJoinName)) {
    return refuse(ErrorCode::kInvalidArgument,
                  "this rank has joined the process set and must wait for join() to return");
  }
  if (being_removed_) {
    return refuse(ErrorCode::kInvalidArgument, kBeingRemoved);
  }
  return {};
}

// With a port, a join lies in pending_ from the beginning, so that refusal() refuses all later requests. It is announced after
// the earlier requests of this rank (announce_join).
void SetNegotiation::admit(Entry& entry) {
  if (port_ && entry.request->kind == OpKind::kJoin) {
    joins_ = true;
    pending_.emplace(kJoinName, Pending{std::move(entry)});
  } else if (port_) {
    await_decisions(local_units_.admit(std::move(entry)));
  } else {
    await_decision(std::move(entry));
  }
}

// Leaves this entry to the coordinator, which learns of the entry from the next announce_pending().
void SetNegotiation::await_decision(Entry entry) {
  const std::string& name = entry.request->name;
  to_announce_.push_back(name);
  pending_.emplace(name, Pending{std::move(entry)});
}

bool SetNegotiation::await_decisions(std::vector<Entry> entries) {
  for (Entry& entry : entries) await_decision(std::move(entry));
  return !entries.empty();
}

// The port comes first: entries that it leaves to the coordinator go into the same Announcement. An Announcement may also be
// empty, if it only tells the coordinator that this member has read a closing.
bool SetNegotiation::announce() {
  const bool moved = port_ && agree();
  if (to_announce_.empty() && !tells_closing_) return moved;
  announce_pending();
  return true;
}

// One Announcement is for all names of to_announce_. `seen` tells the coordinator to which state of the response cache the
// slots refer.
void SetNegotiation::announce_pending() {
  Announcement message;
  message.set = set_.id;
  message.seen = seen_;
  message.closings = closings_;
  tells_closing_ = false;
  for (const std::string& name : std::exchange(to_announce_, {})) {
    const auto found = pending_.find(name);
    // The name may be in the list twice: for an operation that has ended meanwhile, and for the next one.
    if (found == pending_.end() || found->second.announced) continue;
    Pending& pending = found->second;
    pending.announced = true;
    all_.effects_.reached({&pending.entry, 1}, Effects::Stage::kAnnounced);
    const auto slot = cache_.find(*pending.entry.request);
    pending.by_slot = slot.has_value();
    if (slot) {
      message.slots.push_back(*slot);
    } else {
      message.requests.push_back(pending.entry.request);
    }
  }
  all_.counters_.cache_hits += static_cast<std::int64_t>(message.slots.size());
  all_.counters_.cache_misses += static_cast<std::int64_t>(message.requests.size());
  all_.deliver(set_.coordinator_rank(), std::move(message));
}

// --- what the coordinator has decided ---------------------------------------------------------------------------------

// Checks all full responses before it keeps or executes any of them. For a hit this function stores only the slot. remember()
// looks up the response when the list is followed, because perhaps an earlier list that still waits in lists_ fills the slot.
void SetNegotiation::hear(int source, ResponseList message) {
  HVD_CHECK(source == set_.coordinator_rank() && set_.is_member());
  HVD_CHECK(!message.in_ledger || port_ != nullptr);
  for (const Response& response : message.responses) {
    check_received(response, set_.id, *set_.members);
  }
  auto full = message.responses.begin();
  for (const std::int32_t slot : message.slots) {
    if (slot < 0) {
      message.decisions.push_back({std::make_shared<const Response>(std::move(*full++)), false});
    } else {
      Response placeholder;
      placeholder.slot = slot;
      message.decisions.push_back({std::make_shared<const Response>(std::move(placeholder)), true});
    }
  }
  // Other operations may come before this list in the log. So the list waits until this member reads the list's entry there.
  if (message.in_ledger) {
    lists_.push_back(std::move(message));
  } else {
    follow(message);
  }
}

// The head of this file has the steps. responses[i] and agreed[i] belong to the list's decision i.
void SetNegotiation::follow(const ResponseList& list) {
  ++seen_;
  came_last(list.last, list.decisions.size());
  std::vector<ResponsePtr> responses;
  std::vector<AgreedOperation> agreed;
  responses.reserve(list.decisions.size());
  agreed.reserve(list.decisions.size());
  for (const Decision& decision : list.decisions) {
    const ResponsePtr& response = responses.emplace_back(remember(decision));
    const bool failed = !response->error.ok();
    agreed.push_back({response->request, response->contributors, failed, response->divisor});
    if (port_) {
      // Of a failed response, perhaps only the name is right (Coordinator::fail). So withdraw also looks for the name.
      await_decisions(local_units_.withdraw(*response->request, failed));
      local_units_.remember_rows(*response, set_.size());
    }
    if (!failed) check_mine(*response);
  }
  for (const std::vector<std::uint32_t>& places :
       plan_fusion(agreed, all_.settings_.fusion_threshold, set_.size())) {
    FusedOp fused;
    for (const std::uint32_t place : places) fused.parts.push_back(agreed[place]);
    follow_fused(responses[places.front()], std::move(fused));
  }
}

// Updates this rank's response cache as the coordinator updates its own, and returns the full response.
ResponsePtr SetNegotiation::remember(const Decision& decision) {
  if (decision.hit) return cache_.at(static_cast<std::uint32_t>(decision.response->slot));
  const Response& response = *decision.response;
  if (response.slot < 0) return decision.response;
  HVD_CHECK(static_cast<std::size_t>(response.slot) < all_.settings_.cache_capacity);
  const auto mine = pending_.find(response.request->name);
  const std::string lost = cache_.put(
      static_cast<std::uint32_t>(response.slot), decision.response,
      mine != pending_.end() && mine->second.announced ? mine->second.entry.request : nullptr);
  const auto replaced = pending_.find(lost);
  if (!lost.empty() && replaced != pending_.end() && replaced->second.by_slot) {
    // This rank has announced by a slot that has another name now. The coordinator ignores that announcement, so the operation
    // is announced again.
    replaced->second.announced = false;
    replaced->second.by_slot = false;
    to_announce_.push_back(lost);
  }
  return decision.response;
}

// Does the decision fit what this rank asked for? If it did not, the execution could write beyond the memory of this rank's
// tensor, which has the size of this rank's own request.
void SetNegotiation::check_mine(const Response& response) const {
  const auto found = pending_.find(response.request->name);
  check_fits(response, found != pending_.end() ? &found->second.entry : nullptr, has_joined(),
             *set_.members, set_.index);
  if (response.request->kind == OpKind::kRemoveProcessSet) {
    HVD_CHECK(all_.may_remove(response.request->root));
  }
}

// Some of these entries have no request. That is correct if this rank has joined or need not ask, and an error if the list
// names an operation twice.
void SetNegotiation::check_absence(const Response& first, std::span<const Entry> entries) {
  try {
    check_fits(first, nullptr, has_joined(), *set_.members, set_.index);
  } catch (const base::Error& error) {
    all_.finish(entries, {error.code(), error.what()});  // no table holds these entries
    throw;
  }
}

// Has this rank joined, so that it takes part without having asked? A rank that has said goodbye counts as joined, because it
// asks for nothing more, and the others do not wait for it.
bool SetNegotiation::has_joined() const {
  return pending_.contains(kJoinName) || all_.said_goodbye_;
}

// Returns an entry without a request if this rank did not ask.
Entry SetNegotiation::take_entry(const std::string& name) {
  const auto found = pending_.find(name);
  if (found == pending_.end()) return all_.take_held_removal(set_.id, name);
  Entry entry = std::move(found->second.entry);
  pending_.erase(found);
  all_.effects_.reached({&entry, 1}, Effects::Stage::kAgreed);
  return entry;
}

// Only allreduces without an error are fused; each other operation runs alone. So the kind, the error and the sizes of `first`
// are those of the whole FusedOp.
void SetNegotiation::follow_fused(const ResponsePtr& first, FusedOp fused) {
  std::vector<Entry> entries;
  entries.reserve(fused.parts.size());
  bool all_mine = true;
  for (const AgreedOperation& part : fused.parts) {
    entries.push_back(take_entry(part.request->name));
    all_mine = all_mine && entries.back().request;
  }
  if (!all_mine && first->error.ok()) check_absence(*first, entries);
  const OpKind kind = first->request->kind;
  if (!first->error.ok()) {
    // An operation with an error is not fused, so there is only one entry.
    if (entries[0].request) all_.finish(entries, first->error);
  } else if (kind == OpKind::kJoin || changes_sets(kind)) {
    all_.carry_out(*first, entries[0]);
  } else {
    fused.sizes = first->sizes;
    execute(std::move(fused), std::move(entries));
  }
}

void SetNegotiation::execute(FusedOp fused, std::vector<Entry> entries) {
  if (set_.id.id == 0 && fused.first().on_gpu()) all_.share_staging();
  all_.effects_.execute(set_.id, std::move(fused), std::move(entries));
}

// As Effects::came_last, with a member's index; -1: no member's request completed the operations.
void SetNegotiation::came_last(int member, std::size_t operations) {
  if (set_.size() == 1 || member < 0) return;
  HVD_CHECK(member < set_.size());
  all_.effects_.came_last((*set_.members)[static_cast<std::size_t>(member)], operations);
}

// --- endings ----------------------------------------------------------------------------------------------------------

// The coordinator fails all operations that it has not sent in a list. Its rank also closes the port, so that the units that
// wait there come to the coordinator in messages. (On other ranks upkeep_ has no effect.) The member that left has closed the
// port itself, but perhaps the coordinator opened the port again before it learned of the member's end. If the
// coordinator's rank has left, nobody decides anything any more, and each member fails its own entries.
void SetNegotiation::left(int rank, const Status& why) {
  const int member = set_.index_of(rank);
  if (member < 0 || !set_.is_member()) return;
  if (coordinator_) coordinator_->leave(why);
  if (port_) {
    port_->left(member);
    upkeep_.close = true;
  }
  attend();
  if (set_.coordinator_rank() == rank) {
    broken_ = why;
    fail_pending(why);
  }
}

// Keeps the entries that this rank has announced to a coordinator on another rank, if that rank has not left: the coordinator
// has perhaps decided them already, and in that case the other members wait for this rank. No other entry can be agreed any
// more: close() came before, so no unit of this rank becomes complete at the port, and no coordinator decides the rest.
bool SetNegotiation::leave(const Status& why) {
  if (!set_.is_member()) return false;
  if (port_) port_->leave();
  const int coordinator = set_.coordinator_rank();
  decltype(pending_) decidable;
  if (coordinator != all_.settings_.rank && !all_.has_left(coordinator)) {
    for (auto at = pending_.begin(); at != pending_.end();) {
      const auto each = at++;
      if (each->second.announced) decidable.insert(pending_.extract(each));
    }
  }
  fail_pending(why);
  pending_ = std::move(decidable);
  return !pending_.empty();
}

std::vector<Entry> SetNegotiation::take_pending() {
  std::vector<Entry> entries = local_units_.take_all();
  for (auto& [name, pending] : std::exchange(pending_, {})) {
    entries.push_back(std::move(pending.entry));
  }
  to_announce_.clear();
  return entries;
}

void SetNegotiation::fail_pending(const Status& why) {
  for (Entry& entry : take_pending()) {
    all_.finish({&entry, 1}, {why.code, describe(*entry.request) + ": " + why.message});
  }
}

}  // namespace hvdlite::engine
