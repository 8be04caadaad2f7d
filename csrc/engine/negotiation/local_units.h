// A member's side of an Agreement: what of this rank is announced there, and what is about to be.
// Thread: the holder of the progress token. Owns: the entries that go that way until they are taken back. Blocks: no.
// Throws: what the agreement throws; then nothing is lost.
//
// An agreement deals in units: an operation by itself, or a group of operations, which is announced when this rank has
// submitted all of it. Operations whose extents differ between ranks (allgather, alltoall) and those that change sets or end
// a join need the coordinator and are not in it.
#pragma once

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "engine/model/entry.h"
#include "engine/negotiation/agreement.h"

namespace hvdlite::engine {

class LocalUnits {
 public:
  // The keys that a request may have there: of itself, and of its group.
  static void add_keys(const Request& request, std::vector<std::uint64_t>& keys);

  // Takes an entry of this rank, which is announced when its unit is complete. False, and not taken, if it has to go by
  // message: it is none of the agreement's, or others of its group have gone that way.
  bool admit(Entry& entry);
  bool has_waiting() const { return !waiting_.empty(); }
  bool has_announced() const { return !announced_.empty(); }
  bool has_entries() const { return !(waiting_.empty() && announced_.empty() && groups_.empty()); }
  // Calls visit(const Entry&) for each entry held here.
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

  // Announces what waits, as much as at once is good. Calls announced(entries) for what has been; what has to go by message
  // instead is added to `by_message`.
  template <typename Announced>
  Agreement::Step announce(Agreement& agreement, std::vector<Entry>& by_message,
                           Announced announced);
  // The one entry that waits, with nothing else of this rank announced; null otherwise.
  const Entry* only_one() const;
  // Of what waits: whether the only one is announced as prepared.
  void mark_prepared(bool prepared) { units_.front().prepared = prepared; }

  // What this rank has announced under a key, where it is no longer; empty if nothing.
  std::vector<Entry> take(std::uint64_t key);
  // Everything: announced, waiting, and parts of groups.
  std::vector<Entry> take_all();
  // The coordinator has decided this request. Gives the unit it belongs to, if that is held here: what the coordinator has not
  // decided of it goes by message. by_name: this rank's may differ from the decided one in everything but the name.
  std::vector<Entry> withdraw(const Request& decided, bool by_name);

  void add_to(base::Hasher& hasher) const;

 private:
  // Announcements in one step, so that nobody is kept from it for long.
  static constexpr std::size_t kMostAtOnce = 512;

  void wait(const Agreement::Unit& unit, std::vector<Entry> entries);
  std::vector<Entry> take_waiting(std::size_t place);
  // The part of a group that is here; the rest goes by message as it comes.
  std::vector<Entry> give_up_group(std::uint64_t key);

  std::unordered_map<std::uint64_t, std::vector<Entry>> groups_;  // not complete, by key
  std::unordered_map<std::uint64_t, std::int32_t>
      sent_groups_;  // by message, and how many of each are still to come
  // To be announced: units, and the entries of each in the order of the group.
  std::vector<Agreement::Unit> units_;
  std::vector<std::vector<Entry>> waiting_;
  std::unordered_map<std::uint64_t, std::vector<Entry>> announced_;  // by key
};

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
