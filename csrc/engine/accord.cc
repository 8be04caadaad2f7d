#include "engine/accord.h"

#include <algorithm>
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

std::uint64_t group_key(const Request& request) {
  base::Hasher hasher;
  hasher.add(hash_of_name(request.set, request.group));
  hasher.add(1);  // a group is not the tensor of that name
  return hasher.value();
}

std::uint64_t content_of(const std::vector<RequestPtr>& group) {
  base::Hasher hasher;
  for (const RequestPtr& request : group) {
    hasher.add(request->name_hash);
    hasher.add(request->content_hash);
    hasher.add(request->absent ? 1 : 0);
  }
  return hasher.value();
}

}  // namespace

void Accord::add_keys(const Request& request, std::vector<std::uint64_t>& keys) {
  keys.push_back(request.name_hash);
  if (!request.in_group()) return;
  const std::uint64_t key = group_key(request);
  if (keys.size() < 2 || keys[keys.size() - 2] != key) keys.push_back(key);
}

bool Accord::admit(const RequestPtr& request) {
  if (!covers(request->kind)) return false;
  if (!request->in_group()) {
    waiting_.push_back({request->name_hash, request->content_hash, request->absent, {request}});
    return true;
  }
  const std::uint64_t key = group_key(*request);
  const auto sent = sent_groups_.find(key);
  if (sent != sent_groups_.end()) {
    if (--sent->second == 0) sent_groups_.erase(sent);
    return false;
  }
  std::vector<RequestPtr>& group = groups_[key];
  group.push_back(request);
  if (group.size() < static_cast<std::size_t>(request->group_size)) return true;
  std::sort(group.begin(), group.end(), [](const RequestPtr& a, const RequestPtr& b) {
    return a->group_index < b->group_index;
  });
  // Which members are absent is part of the content: a difference is for the coordinator to settle.
  waiting_.push_back({key, content_of(group), false, std::move(group)});
  groups_.erase(key);
  return true;
}

bool Accord::announce(std::vector<RequestPtr>& by_message, bool carries) {
  const std::size_t count = std::min(waiting_.size(), kMostAtOnce);
  if (!ledger_.has_room(static_cast<std::uint32_t>(count))) return false;
  for (std::size_t i = 0; i < count; ++i) {
    Unit& unit = waiting_[i];
    if (ledger_.announce(unit.key, unit.content, unit.absent, carries) ==
        Ledger::Answer::kByMessage) {
      by_message.insert(by_message.end(), unit.requests.begin(), unit.requests.end());
    } else {
      announced_.emplace(unit.key, std::move(unit.requests));
    }
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
  return waiting_.empty();
}

const Request* Accord::only_one() const {
  const bool alone = waiting_.size() == 1 && announced_.empty();
  return alone && waiting_.front().requests.size() == 1 ? waiting_.front().requests.front().get()
                                                        : nullptr;
}

std::vector<RequestPtr> Accord::take(std::uint64_t key) {
  auto found = announced_.extract(key);
  return found.empty() ? std::vector<RequestPtr>() : std::move(found.mapped());
}

std::vector<RequestPtr> Accord::take_all() {
  std::vector<RequestPtr> all;
  const auto add = [&](std::vector<RequestPtr>& requests) {
    all.insert(all.end(), requests.begin(), requests.end());
  };
  for (auto& [key, requests] : std::exchange(announced_, {})) add(requests);
  for (Unit& unit : std::exchange(waiting_, {})) add(unit.requests);
  for (auto& [key, requests] : std::exchange(groups_, {})) {
    sent_groups_[key] = requests.front()->group_size - static_cast<std::int32_t>(requests.size());
    add(requests);
  }
  return all;
}

std::vector<RequestPtr> Accord::forget(const Request& request) {
  announced_.erase(request.name_hash);
  if (!request.in_group()) return {};
  std::vector<RequestPtr> others = take(group_key(request));
  std::erase_if(others, [&](const RequestPtr& other) { return other->name == request.name; });
  return others;
}

}  // namespace hvdlite::engine
