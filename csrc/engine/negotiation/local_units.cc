// An entry lies in one of three tables, until the caller gets it back:
//
//    groups_               the group is not complete    admit() moves the complete group on
//    units_ and waiting_   the unit waits               announce() moves the unit on
//    announced_            the port has the unit        take() returns its entries
//
// Entries that must go by message are not moved on: admit() returns them, and announce() adds them to `by_message`. take_all()
// and withdraw() find entries in each of the three tables. units_[i] and waiting_[i] belong to the same unit.
//
// If entries of an incomplete group go by message, the later entries of the group must go by message, too: in groups_ the group
// would never become complete. sent_groups_ counts the entries that are still to come. An example with the group g of a, b, c:
//
//    admit(a), admit(b)     groups_: g has a, b
//    withdraw(b)            the coordinator has decided that b fails: returns a and b. sent_groups_: 1 entry of g is to come
//    admit(c)               returns c. sent_groups_ forgets g, and the next entry with this label begins a new group
#include "engine/negotiation/local_units.h"

#include <iterator>
#include <utility>

#include "base/hash.h"

namespace hvdlite::engine {

using base::OpKind;

namespace {

// Larger allgathers and alltoalls go by message: the coordinator checks that one tensor can hold the rows of all members.
constexpr std::int64_t kMostRows = std::int64_t{1} << 40;
constexpr std::size_t kMostBytesOfRows = std::size_t{1} << 40;
// uneven_ has at most this many names. If it is full, all names are removed before a new one is added. If the rows of a removed
// name still differ, the next announcement with this name is diverted, and the name is added again.
constexpr std::size_t kMostUneven = 1024;

// Are equal requests of all members enough for an agreement on this operation? For a join they are not: each single join
// changes for which members the other operations wait. For a change of sets they are not, either: perhaps only some of the
// members ask for it.
bool covers(const Request& request) {
  if (rows_may_differ(request.kind)) {
    return request.shape[0] <= kMostRows && request.bytes() <= kMostBytesOfRows;
  }
  return moves_data(request.kind) || request.kind == OpKind::kBarrier;
}

// The hash of the name. If hvdlite has made the name, the hash of its first part, which is the same for all unnamed operations
// of a kind.
std::uint64_t lasting_name(const Request& request) {
  const std::size_t unnamed = request.name.find(kUnnamed);
  if (unnamed == std::string::npos) return request.name_hash;
  return hash_of_name(request.set, std::string_view(request.name).substr(0, unnamed));
}

// Members that have different groups under one label must get different hashes. The content hash of a request leaves out the
// name and `absent`, so these are added. (Of a single operation the port gets `absent` separately, because members may differ
// in it.)
std::uint64_t content_of(const std::vector<Entry>& group) {
  base::Hasher hasher;
  for (const Entry& entry : group) {
    hasher.add(entry.request->name_hash);
    hasher.add(entry.request->content_hash);
    hasher.add(entry.request->absent ? 1 : 0);
  }
  return hasher.value();
}

bool in_order(const Entry& a, const Entry& b) {
  return a.request->group_index < b.request->group_index;
}

void append(std::vector<Entry>& to, std::vector<Entry>&& entries) {
  to.insert(to.end(), std::make_move_iterator(entries.begin()),
            std::make_move_iterator(entries.end()));
}

}  // namespace

void LocalUnits::add_keys(const Request& request, std::vector<std::uint64_t>& keys) {
  keys.push_back(request.name_hash);
  if (!request.in_group()) return;
  // Usually the operations of a group follow each other, and then the group's key need not be added for each. A key may still
  // be in the list more than once, which does no harm.
  const std::uint64_t key = request.group_hash;
  if (keys.size() < 2 || keys[keys.size() - 2] != key) keys.push_back(key);
}

void LocalUnits::wait(const Agreement::Unit& unit, std::vector<Entry> entries) {
  units_.push_back(unit);
  waiting_.push_back(std::move(entries));
}

std::vector<Entry> LocalUnits::admit(Entry entry) {
  const Request& request = *entry.request;
  if (request.in_group()) return admit_to_group(std::move(entry));
  std::vector<Entry> unit;
  unit.push_back(std::move(entry));
  if (!covers(request)) return unit;
  // Usually uneven_ is empty. Then no time is spent on the name.
  if (!uneven_.empty() && uneven_.contains(lasting_name(request))) return unit;
  wait({request.name_hash, request.content_hash, request.absent}, std::move(unit));
  return {};
}

std::vector<Entry> LocalUnits::admit_to_group(Entry entry) {
  const Request& request = *entry.request;
  const std::uint64_t key = request.group_hash;
  const auto sent = sent_groups_.find(key);
  if (sent != sent_groups_.end()) {
    if (--sent->second == 0) sent_groups_.erase(sent);
    std::vector<Entry> alone;
    alone.push_back(std::move(entry));
    return alone;
  }
  const auto size = static_cast<std::size_t>(request.group_size);
  std::vector<Entry>& group = groups_[key];
  if (group.empty()) group.reserve(size);
  group.push_back(std::move(entry));
  if (group.size() < size) return {};
  // A rank may submit the entries in any order. But all members must have the unit's entries in the same order, because this
  // order decides the unit's content (a hash) and the order in which the operations run.
  if (!std::ranges::is_sorted(group, in_order)) std::ranges::sort(group, in_order);
  std::vector<Entry> unit = std::move(group);
  groups_.erase(key);
  // The coordinator decides a group as a whole. So if one operation needs the coordinator, all of them go to the coordinator.
  if (!std::ranges::all_of(unit, [](const Entry& each) { return covers(*each.request); })) {
    return unit;
  }
  // Unit::absent stays false for a group. If members differ in which operations are absent, they differ in `content`, and the
  // coordinator decides the group.
  const std::uint64_t content = content_of(unit);
  wait({key, content}, std::move(unit));
  return {};
}

void LocalUnits::remember_rows(const Response& response, int members) {
  const Request& request = *response.request;
  if (!rows_may_differ(request.kind) || request.in_group() || !response.error.ok()) return;
  // Did all members have the same rows, those of the agreed request?
  if (response.sizes == sizes_of_equal(request, members)) {
    // The next operation of this name is announced at the port again.
    uneven_.erase(lasting_name(request));
    return;
  }
  if (uneven_.size() >= kMostUneven) uneven_.clear();
  uneven_.insert(lasting_name(request));
}

std::size_t LocalUnits::waiting_singles() const {
  // A group of one does not count: because of its label, it is not fused with operations that have no label (compatible() in
  // fusion_planner.cc).
  const auto is_single = [](const std::vector<Entry>& unit) {
    return unit.front().request->group.empty();
  };
  return static_cast<std::size_t>(std::ranges::count_if(waiting_, is_single));
}

std::vector<Entry> LocalUnits::take(std::uint64_t key) {
  auto found = announced_.extract(key);
  return found.empty() ? std::vector<Entry>() : std::move(found.mapped());
}

std::vector<Entry> LocalUnits::take_all() {
  std::vector<Entry> all;
  for (auto& [key, entries] : std::exchange(announced_, {})) append(all, std::move(entries));
  for (std::vector<Entry>& entries : std::exchange(waiting_, {})) append(all, std::move(entries));
  units_.clear();
  // The loop ends, because give_up_group() removes the group from groups_.
  while (!groups_.empty()) append(all, give_up_group(groups_.begin()->first));
  return all;
}

std::vector<Entry> LocalUnits::give_up_group(std::uint64_t key) {
  auto found = groups_.extract(key);
  if (found.empty()) return {};
  std::vector<Entry> entries = std::move(found.mapped());
  sent_groups_[key] =
      entries.front().request->group_size - static_cast<std::int32_t>(entries.size());
  return entries;
}

// If this rank asked for what was decided, the key finds the entries. If the operation has failed, the decided request may have
// another group than this rank's request (Coordinator::fail). Then this rank holds its entry under another key. Therefore, only
// for a failure (by_name), the names of all entries are compared, too.
std::vector<Entry> LocalUnits::withdraw(const Request& decided, bool by_name) {
  const std::uint64_t key = decided.in_group() ? decided.group_hash : decided.name_hash;
  const auto matches = [&](std::uint64_t held, const std::vector<Entry>& entries) {
    return held == key || (by_name && std::ranges::any_of(entries, [&](const Entry& entry) {
                             return entry.request->name == decided.name;
                           }));
  };
  if (announced_.contains(key)) return take(key);
  for (const auto& [held, entries] : announced_) {
    if (by_name && matches(held, entries)) return take(held);
  }
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (!matches(units_[i].key, waiting_[i])) continue;
    const auto place = static_cast<std::ptrdiff_t>(i);
    std::vector<Entry> entries = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + place);
    units_.erase(units_.begin() + place);
    return entries;
  }
  for (const auto& [held, entries] : groups_) {
    if (matches(held, entries)) return give_up_group(held);
  }
  return {};
}

}  // namespace hvdlite::engine
