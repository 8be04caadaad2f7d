// The functions that make the digest of a Negotiation (Negotiation::digest).
//
// Only tests call them. A test walks through all states of a small job and continues only from states that it has not seen
// (negotiation_explored.cc). It compares states by their digests:
//
//    a digest leaves something out on which later steps depend    two states count as one, and the test does not continue from
//                                                                 the second
//    a digest includes something without an effect                one state counts as many, and the walk takes longer or does
//                                                                 not end
//
// Therefore no digest includes
//   - addresses, completions and statistics (Counters);
//   - what follows from included values: indices by name, the number of members that have joined, Upkeep::reopen;
//   - flags that only tell a pass whether there is work to do (attentive_, try_again_);
//   - settings, which are constant in one walk;
//   - a ledger in shared memory, which belongs to no rank. The test adds it once for the job.
//
// Two ways to one state may leave the elements of a hash table in different orders. So add_table takes the sum of the elements'
// hashes, which is the same in any order. Lists are hashed in their order, because their order decides what happens next.
//
// A ReplicatedLedger hashes its own state (Agreement::add_to).

#include "engine/model/hashing.h"
#include "engine/negotiation/negotiation.h"

namespace hvdlite::engine {

namespace {

// Each entry has a request, because this rank has asked for it.
void add_entries(base::Hasher& hasher, const std::vector<Entry>& entries) {
  hasher.add(entries.size());
  for (const Entry& entry : entries) add_request(hasher, *entry.request);
}

void add_response(base::Hasher& hasher, const Response& response) {
  add_request(hasher, *response.request);
  add_status(hasher, response.error);
  hasher.add_pair(response.slot, response.contributors);
  hasher.add_pair(response.divisor, response.value);
}

void add_keys(base::Hasher& hasher, const std::vector<std::uint64_t>& keys) {
  hasher.add(keys.size());
  for (const std::uint64_t key : keys) hasher.add(key);
}

}  // namespace

// Unit::prepared and Unit::payload are left out: both are set anew before each announcement.
void LocalUnits::add_to(base::Hasher& hasher) const {
  add_table(hasher, groups_, add_entries);
  add_table(hasher, sent_groups_,
            [](base::Hasher& each, std::int32_t left) { each.add_signed(left); });
  hasher.add(units_.size());
  for (std::size_t i = 0; i < units_.size(); ++i) {
    hasher.add(units_[i].key);
    hasher.add(units_[i].content);
    add_entries(hasher, waiting_[i]);
  }
  add_table(hasher, announced_, add_entries);
  std::uint64_t uneven = 0;
  for (const std::uint64_t name : uneven_) uneven += name;  // a sum is the same in any order
  hasher.add(uneven);
}

void ResponseCache::add_to(base::Hasher& hasher) const {
  hasher.add(slots_.size());
  for (const KnownResponse& known : slots_) {
    hasher.add_pair(known.response ? 1 : 0, known.mine ? 1 : 0);
    if (known.response) add_response(hasher, *known.response);
    if (known.mine) add_request(hasher, *known.mine);
  }
}

// `recency_` is a list of slots in the order of their use. It is included, because it decides which slot is replaced next.
void Coordinator::add_to(base::Hasher& hasher) const {
  const auto add_settled = [](base::Hasher& each, const Settled& settled) {
    add_response(each, *settled.response);
    add_requests(each, settled.requests);
    each.add(settled.hit ? 1 : 0);
  };
  hasher.add(sequence_);
  add_table(hasher, tallies_, [](base::Hasher& each, const RequestTally& tally) {
    add_requests(each, tally.requests);
  });
  add_table(hasher, groups_, [&](base::Hasher& each, const PendingGroup& group) {
    for (const Settled& settled : group.ready) add_settled(each, settled);
    each.add_signed(group.settled);
    add_status(each, group.error);
  });
  for (const Settled& settled : decided_) add_settled(hasher, settled);
  add_table(hasher, failed_at_, [](base::Hasher& each, std::uint64_t number) { each.add(number); });
  hasher.add(doomed_.size());
  for (const std::string& name : doomed_) hasher.add_text(name);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    hasher.add_pair(joined_[i] ? 1 : 0, uncounted_[i] ? 1 : 0);
  }
  add_status(hasher, left_);
  hasher.add_signed(last_);
  for (const AssignedSlot& assigned : slots_) {
    add_response(hasher, *assigned.response);
    add_requests(hasher, assigned.requests);
    hasher.add(assigned.filled);
  }
  for (const std::uint32_t slot : recency_) hasher.add(slot);
}

void SetNegotiation::add_to(base::Hasher& hasher) const {
  hasher.add_pair(set_.id.id, static_cast<std::int32_t>(set_.id.epoch));
  local_units_.add_to(hasher);
  if (port_) port_->add_to(hasher);
  hasher.add(seen_);
  cache_.add_to(hasher);
  add_table(hasher, pending_, [](base::Hasher& each, const Pending& pending) {
    add_request(each, *pending.entry.request);
    each.add_pair(pending.announced ? 1 : 0, pending.by_slot ? 1 : 0);
  });
  hasher.add(to_announce_.size());
  for (const std::string& name : to_announce_) hasher.add_text(name);
  add_status(hasher, broken_);
  hasher.add_pair(being_removed_ ? 1 : 0, joins_ ? 1 : 0);
  hasher.add(lists_.size());
  for (const ResponseList& list : lists_) add_message(hasher, list);
  hasher.add(closings_);
  hasher.add(tells_closing_ ? 1 : 0);
  // The rest exists on the first member only.
  if (!coordinator_) return;
  coordinator_->add_to(hasher);
  hasher.add(upkeep_.close ? 1 : 0);
  add_keys(hasher, upkeep_.divert);
  add_keys(hasher, closings_of_);
  hasher.add(verdicts_.size());
  for (const Verdict& verdict : verdicts_) add_message(hasher, verdict);
}

std::uint64_t Negotiation::digest() const {
  base::Hasher hasher;
  hasher.add(sets_.size());
  for (const auto& [id, set] : sets_) set->add_to(hasher);
  hasher.add_pair(asked_for_staging_ ? 1 : 0, said_goodbye_ ? 1 : 0);
  for (const bool left : left_) hasher.add(left ? 1 : 0);
  hasher.add_pair(next_set_id_, static_cast<std::int32_t>(last_epoch_));
  add_ranks(hasher, free_set_ids_);
  add_entries(hasher, held_removals_);
  for (const auto& [epoch, messages] : early_) {
    hasher.add(epoch);
    for (const auto& [source, message] : messages) {
      hasher.add_signed(source);
      std::visit([&](const auto& content) { add_message(hasher, content); }, message);
    }
  }
  return hasher.value();
}

}  // namespace hvdlite::engine
