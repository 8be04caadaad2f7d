#include "engine/negotiation/accord.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/hash.h"

namespace hvdlite::engine {

using base::OpKind;

namespace {

// Announcements in one hold of the lock, so that nobody waits long for it.
constexpr std::size_t kMostAtOnce = 512;

// Operations that equal requests describe completely.
bool covers(OpKind kind) {
  return kind == OpKind::kAllreduce || kind == OpKind::kBroadcast ||
         kind == OpKind::kReducescatter || kind == OpKind::kBarrier;
}

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

void Accord::add_keys(const Request& request, std::vector<std::uint64_t>& keys) {
  keys.push_back(request.name_hash);
  if (!request.in_group()) return;
  const std::uint64_t key = request.group_hash;
  if (keys.size() < 2 || keys[keys.size() - 2] != key) keys.push_back(key);
}

bool Accord::admit(Entry& entry) {
  const Request& request = *entry.request;
  if (!covers(request.kind)) return false;
  if (!request.in_group()) {
    Unit& unit = waiting_.emplace_back();
    unit.key = request.name_hash;
    unit.content = request.content_hash;
    unit.absent = request.absent;
    unit.entries.push_back(std::move(entry));
    return true;
  }
  const std::uint64_t key = request.group_hash;
  const auto sent = sent_groups_.find(key);
  if (sent != sent_groups_.end()) {
    if (--sent->second == 0) sent_groups_.erase(sent);
    return false;
  }
  const auto size = static_cast<std::size_t>(request.group_size);
  std::vector<Entry>& group = groups_[key];
  if (group.empty()) group.reserve(size);
  group.push_back(std::move(entry));
  if (group.size() < size) return true;
  if (!std::ranges::is_sorted(group, in_order)) std::ranges::sort(group, in_order);
  // Which members are absent is part of the content: a difference is for the coordinator to settle.
  waiting_.push_back({key, content_of(group), false, std::move(group)});
  groups_.erase(key);
  return true;
}

bool Accord::announce(std::vector<Entry>& by_message, bool rides, Usage& usage) {
  const std::size_t count = std::min(waiting_.size(), kMostAtOnce);
  if (!ledger_.has_room(static_cast<std::uint32_t>(count))) return false;
  for (std::size_t i = 0; i < count; ++i) {
    Unit& unit = waiting_[i];
    if (ledger_.announce(unit.key, unit.content, unit.absent, rides) ==
        Ledger::Answer::kByMessage) {
      append(by_message, std::move(unit.entries));
    } else {
      usage.reached(unit.entries, Usage::Stage::kAnnounced);
      announced_.emplace(unit.key, std::move(unit.entries));
    }
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
  return waiting_.empty();
}

const Entry* Accord::only_one() const {
  const bool alone = waiting_.size() == 1 && announced_.empty();
  return alone && waiting_.front().entries.size() == 1 ? &waiting_.front().entries.front()
                                                       : nullptr;
}

void Accord::divert_no_more(std::vector<std::uint64_t> decided) {
  if (to_divert.empty()) return;
  std::ranges::sort(decided);
  std::erase_if(to_divert,
                [&](std::uint64_t key) { return std::ranges::binary_search(decided, key); });
}

std::vector<Entry> Accord::take(std::uint64_t key) {
  auto found = announced_.extract(key);
  return found.empty() ? std::vector<Entry>() : std::move(found.mapped());
}

std::vector<Entry> Accord::take_all() {
  std::vector<Entry> all;
  for (auto& [key, entries] : std::exchange(announced_, {})) append(all, std::move(entries));
  for (Unit& unit : std::exchange(waiting_, {})) append(all, std::move(unit.entries));
  while (!groups_.empty()) append(all, give_up_group(groups_.begin()->first));
  return all;
}

std::vector<Entry> Accord::give_up_group(std::uint64_t key) {
  auto found = groups_.extract(key);
  if (found.empty()) return {};
  std::vector<Entry> entries = std::move(found.mapped());
  sent_groups_[key] =
      entries.front().request->group_size - static_cast<std::int32_t>(entries.size());
  return entries;
}

std::vector<Entry> Accord::withdraw(const Request& decided, bool by_name) {
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
  for (auto unit = waiting_.begin(); unit != waiting_.end(); ++unit) {
    if (!matches(unit->key, unit->entries)) continue;
    std::vector<Entry> entries = std::move(unit->entries);
    waiting_.erase(unit);
    return entries;
  }
  for (const auto& [held, entries] : groups_) {
    if (matches(held, entries)) return give_up_group(held);
  }
  return {};
}

}  // namespace hvdlite::engine
