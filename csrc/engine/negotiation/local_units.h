// This rank's units of one process set: those that it has announced at the set's port (an Agreement, agreement.h), and those
// that it will announce there.
// Thread: the holder of the progress token. Owns: these units' entries until the caller takes them back. Blocks: no.
// Throws: what the port throws. Even if it throws, no entry is lost.
//
// A unit is one operation, or a group of operations. A group is announced when this rank has submitted all of it. Some
// operations need the coordinator and are no units: joins, changes of process sets, very large allgathers and alltoalls
// (kMostRows), and allgathers and alltoalls whose rows differed between ranks when the ranks last ran an operation of the same
// name.
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "engine/model/entry.h"
#include "engine/negotiation/agreement.h"

namespace hvdlite::engine {

class LocalUnits {
 public:
  // Adds the keys that a request can have at the port: its own key and, if it belongs to a group, the group's key.
  static void add_keys(const Request& request, std::vector<std::uint64_t>& keys);

  // Takes an entry of this rank. When this rank has submitted the whole unit, the unit waits for announce(). Returns the
  // entries that must go by message. These are: an entry without a group, if its operation needs the coordinator; a complete
  // group, if one of its operations needs the coordinator; this entry alone, if earlier entries of its group went by message.
  std::vector<Entry> admit(Entry entry);
  // Remembers whether rows differed between ranks in this operation, which the coordinator has decided. If they did, the next
  // request of this name goes by message at once. All members get the same responses, so all remember the same names. Ignores
  // an operation that has failed or belongs to a group.
  void remember_rows(const Response& response, int members);
  bool has_announced() const { return !announced_.empty(); }
  bool has_entries() const { return !(waiting_.empty() && announced_.empty() && groups_.empty()); }
  // Calls visit(const Entry&) for each entry that this object owns.
  template <typename Visit>
  void for_each(Visit visit) const {
    for_each_announced(visit);
    for (const std::vector<Entry>& entries : waiting_) std::ranges::for_each(entries, visit);
    for (const auto& [key, entries] : groups_) std::ranges::for_each(entries, visit);
  }
  template <typename Visit>
  void for_each_announced(Visit visit) const {
    for (const auto& [key, entries] : announced_) std::ranges::for_each(entries, visit);
  }

  // Announces waiting units, at most kMostAtOnce in one call. Calls announced(entries) for each announced unit, and adds to
  // `by_message` the entries that must go by message. If the result is kRefused or kUnread, all units still wait.
  template <typename Announced>
  Agreement::Step announce(Agreement& agreement, std::vector<Entry>& by_message,
                           Announced announced);
  // How many units wait? And how many of them are single operations without a group, which may be fused with each other?
  std::size_t waiting() const { return waiting_.size(); }
  std::size_t waiting_singles() const;
  // Calls prepare(unit) for each waiting unit. prepare(unit) returns the unit's payload, or nothing if the unit is not
  // prepared.
  template <typename Prepare>
  void prepare(Prepare prepare);

  // Takes the entries that this rank has announced under a key; none if it has announced nothing.
  std::vector<Entry> take(std::uint64_t key);
  // Takes all entries: announced, waiting, and of incomplete groups.
  std::vector<Entry> take_all();
  // The coordinator has decided this request. Takes the entries of the request's unit, if this object owns them. If the unit is
  // a group, and the coordinator has not decided some of its operations, the caller must send their entries by message.
  // by_name: also finds the entry by its name, because this rank's request perhaps has nothing else in common with the decided
  // request.
  std::vector<Entry> withdraw(const Request& decided, bool by_name);

  void add_to(base::Hasher& hasher) const;

 private:
  // A limit to the announcements in one step, so that no member holds the lock for long.
  static constexpr std::size_t kMostAtOnce = 512;

  std::vector<Entry> admit_to_group(Entry entry);
  void wait(const Agreement::Unit& unit, std::vector<Entry> entries);
  // Takes the entries of an incomplete group. The group's later entries go by message, too.
  std::vector<Entry> give_up_group(std::uint64_t key);

  std::unordered_map<std::uint64_t, std::vector<Entry>> groups_;  // not complete, by key
  // Groups that go by message, and how many of their entries are still to come.
  std::unordered_map<std::uint64_t, std::int32_t> sent_groups_;
  // Units that wait to be announced, and each unit's entries in the order of the group.
  std::vector<Agreement::Unit> units_;
  std::vector<std::vector<Entry>> waiting_;
  std::unordered_map<std::uint64_t, std::vector<Entry>> announced_;  // by key
  // Hashes of the names of allgathers and alltoalls whose rows differed between ranks the last time. If a request with such a
  // name were announced, the port would only divert it to the coordinator. Unnamed operations of a kind count as one name.
  std::unordered_set<std::uint64_t> uneven_;
};

template <typename Prepare>
void LocalUnits::prepare(Prepare prepare) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    std::optional<InlinePayload> payload = prepare(std::span<const Entry>(waiting_[i]));
    units_[i].prepared = payload.has_value();
    units_[i].payload = std::move(payload).value_or(InlinePayload{});
  }
}

template <typename Announced>
Agreement::Step LocalUnits::announce(Agreement& agreement, std::vector<Entry>& by_message,
                                     Announced announced) {
  const std::size_t count = std::min(units_.size(), kMostAtOnce);
  const Agreement::Step step = agreement.try_announce(std::span(units_).first(count));
  if (step == Agreement::Step::kRefused || step == Agreement::Step::kUnread) return step;
  for (std::size_t i = 0; i < count; ++i) {
    if (units_[i].by_message) {
      std::ranges::move(waiting_[i], std::back_inserter(by_message));
    } else {
      announced(waiting_[i]);
      announced_.emplace(units_[i].key, std::move(waiting_[i]));
    }
  }
  units_.erase(units_.begin(), units_.begin() + static_cast<std::ptrdiff_t>(count));
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
  return step;
}

}  // namespace hvdlite::engine
