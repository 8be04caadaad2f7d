// Step 1 of the cycle: control messages, which are checked before they are believed (the rest of Cycle is cycle.cc).

#include <algorithm>

#include "engine/cycle.h"
#include "engine/negotiation/check_received.h"

namespace hvdlite::engine {

using base::OpKind;

bool Cycle::receive() {
  bool any = false;
  int source = 0;
  std::vector<std::byte> bytes;
  while (transport_.receive_message(&source, &bytes)) {
    any = true;
    try {
      Message message = decode(bytes);
      std::visit([&](auto& content) { handle(source, content); }, message);
    } catch (const base::Error& error) {
      throw base::Error(error.code(), "a message of " + transport_.describe_peer(source) +
                                          " cannot be followed: " + error.what());
    }
    if (shared_.failure.happened()) break;
  }
  return any;
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

void Cycle::keep_for_later(SetId id, int source, const Message& message) {
  if (id.epoch > last_epoch_) early_[id.epoch].emplace_back(source, message);
}

void Cycle::handle(int source, Announcement& message) {
  ProcessSet* set = find_set(message.set);
  if (set == nullptr) {
    keep_for_later(message.set, source, message);
    return;
  }
  HVD_CHECK(set->coordinator != nullptr);
  const int member = set->index_of(source);
  HVD_CHECK(member >= 0);
  const auto count = [&](const RequestPtr& accepted) {
    if (accepted && set->accord) Accord::add_keys(*accepted, set->accord->to_divert);
  };
  for (const std::uint32_t slot : message.slots) {
    count(set->coordinator->announce_slot(member, slot, message.seen));
  }
  for (RequestPtr& request : message.requests) {
    count(set->coordinator->announce(member, std::move(request), message.seen));
  }
  if (!set->accord) return;
  std::uint64_t& closings = set->accord->closings_of[static_cast<std::size_t>(member)];
  closings = std::max(closings, message.closings);
  if (set->coordinator->needs_messages()) set->accord->to_close = true;
}

void Cycle::handle(int source, ResponseList& message) {
  ProcessSet* set = find_set(message.set);
  if (set == nullptr) {
    keep_for_later(message.set, source, message);
    return;
  }
  HVD_CHECK(source == set->coordinator_rank() && set->is_member());
  HVD_CHECK(!message.in_ledger || set->accord != nullptr);
  for (const Response& response : message.responses) {
    check_received(response, set->id, *set->members);
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
  if (message.in_ledger) {
    set->accord->lists.push_back(std::move(message));
  } else {
    follow(*set, message);
  }
}

// Before anything is done for it: does the decision fit what this rank asked for? The memory of its tensors is as large as its own
// request says.
void Cycle::check_mine(const ProcessSet& set, const Response& response) const {
  const auto found = set.pending.find(response.request->name);
  check_fits(response, found != set.pending.end() ? &found->second.entry : nullptr, has_joined(set),
             *set.members, set.index);
  if (response.request->kind == OpKind::kRemoveProcessSet) {
    const auto removed = sets_.find(response.request->root);
    HVD_CHECK(removed == sets_.end() || !removed->second->has_pending());
  }
}

// Some of the entries are not this rank's: has it joined, or did a list name an operation twice?
void Cycle::check_absence(const ProcessSet& set, const Response& first,
                          std::span<const Entry> entries) {
  try {
    check_fits(first, nullptr, has_joined(set), *set.members, set.index);
  } catch (const base::Error& error) {
    finish(entries, {error.code(), error.what()});  // no table holds them
    throw;
  }
}

// Does this rank take part in what it has not asked for?
bool Cycle::has_joined(const ProcessSet& set) const {
  return set.pending.contains(kJoinName) || membership_.said_goodbye();
}

}  // namespace hvdlite::engine
