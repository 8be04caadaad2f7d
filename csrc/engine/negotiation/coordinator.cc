// What lies in which table, and when an element leaves the table:
//
//    tallies_         by name: who has announced it         when it is settled, or fails
//    groups_          by label: settled operations that     when all operations of the group are settled, or when fail()
//                     wait for the rest of their group      fails a counted operation of the group
//    decided_         decisions, in the order of execution  in collect()
//    settled_names_   the names of settled operations in    in collect()
//                     groups_ and decided_
//    slots_           agreed responses that members can     never; a slot gets another name only when all slots are in use
//                     name by number
//
// An example with three members. x belongs to no group; a and b are the group g:
//
//    announcement     tallies_               groups_    decided_
//    0: x, a          x by 0; a by 0
//    1: x, a, b       x, a by 0, 1; b by 1
//    2: a, b          x by 0, 1; b by 1, 2   g: a
//    0: b             x by 0, 1                         a, b
//    2: x                                               a, b, x
//
// If collect() is called now, list 1 says: a gets slot 0, b slot 1, x slot 2. If the members make the same requests again, they
// announce only these slot numbers, and the list that answers them has only slot numbers.
//
// Messages cross: a member may announce something while a list is on its way to the member. `seen` is the number of lists that
// the member had processed when it announced. Two kinds of announcements are void:
//
//    list 8 gives slot 4 to another name    "slot 4" with seen 7 means the old name. The member processes list 8, finds that
//    (AssignedSlot::filled is 8)            its slot is lost, and announces in full
//    fail() fails x in list 8               "x" with seen 7 is the operation that list 8 ends on the member. "x" with seen 8 is
//    (failed_at_ is 8)                      the next operation of this name
#include "engine/negotiation/coordinator.h"

#include <algorithm>
#include <utility>

#include "engine/negotiation/check_received.h"
#include "engine/negotiation/response_cache.h"
#include "engine/negotiation/validate.h"

namespace hvdlite::engine {

using base::OpKind;
using base::Status;

namespace {

bool cacheable(OpKind kind) { return kind != OpKind::kJoin && !base::changes_sets(kind); }

// The request for the failure of a join, or of an operation that the coordinator does not count. If a response has an error,
// only the set and the name of its request have to be right (Response::request).
RequestPtr name_only(SetId set, OpKind kind, const std::string& name) {
  Request request;
  request.set = set;
  request.kind = kind;
  request.name = name;
  request.seal();
  return std::make_shared<const Request>(std::move(request));
}

Status of_operation(const Request& request, const Status& why) {
  return {why.code, describe(request) + ": " + why.message};
}

// slot_for() examines at most this many slots, the least recently used ones first.
constexpr int kEvictionTries = 64;

}  // namespace

Coordinator::Coordinator(SetId set, std::vector<int> members, std::size_t cache_capacity,
                         bool join_refuses_others)
    : set_(set),
      members_(std::move(members)),
      capacity_(std::min<std::size_t>(cache_capacity, kMostSlots)),
      join_refuses_others_(join_refuses_others),
      joined_(members_.size(), false),
      uncounted_(members_.size(), false) {}

RequestPtr Coordinator::announce(int member, RequestPtr request, std::uint64_t seen) {
  check_received(*request, set_, members_);
  return count(member, std::move(request), seen);
}

RequestPtr Coordinator::announce_slot(int member, std::uint32_t slot, std::uint64_t seen) {
  HVD_CHECK(slot < slots_.size());
  const AssignedSlot& assigned = slots_[slot];
  if (assigned.filled > seen) {
    return nullptr;  // refilled meanwhile; the member will see that and announce in full
  }
  return count(member, assigned.requests[static_cast<std::size_t>(member)], seen);
}

RequestPtr Coordinator::count(int member, RequestPtr request, std::uint64_t seen) {
  HVD_CHECK(seen <= sequence_);
  const auto failed = failed_at_.find(request->name);
  if (failed != failed_at_.end() && seen < failed->second) {
    return nullptr;  // the announcement crossed the failure, which ends the member's operation
  }
  const std::size_t decided = decided_.size();
  if (request->kind == OpKind::kJoin) {
    join(member, request);
  } else {
    add(member, request);
    settle_if_complete(request->name);
  }
  if (decided_.size() > decided) last_ = member;
  return request;
}

std::vector<RequestPtr> Coordinator::open() const {
  std::vector<RequestPtr> requests;
  requests.reserve(tallies_.size());
  for (const auto& [name, tally] : tallies_) {
    requests.push_back(first_given(tally.requests));
  }
  for (const auto& [label, group] : groups_) {
    for (const Settled& settled : group.ready) {
      requests.push_back(settled.response->request);
    }
  }
  return requests;
}

void Coordinator::add(int member, RequestPtr request) {
  RequestTally& tally = tallies_[request->name];
  if (tally.requests.empty()) tally.requests.resize(members_.size());
  RequestPtr& place = tally.requests[static_cast<std::size_t>(member)];
  // A correct member announces an operation again only if its first announcement was void. Void announcements are not counted.
  HVD_CHECK(place == nullptr);
  // If `request` equals the request of the lowest member that has asked, the tally gets that member's object instead. So equal
  // requests are usually one object, and settle() and validate() need not compare their fields.
  if (tally.count > 0) {
    const RequestPtr& first = first_given(tally.requests);
    if (first != request && *first == *request) request = first;
  }
  place = std::move(request);
  ++tally.count;
}

// Settles the operation if no member is missing: each has asked, has joined, or need not ask. Only at the addition of a set can
// there be members that need not ask. After a member has left, an operation is settled at its first announcement, with an
// error. A doomed operation is not settled: it waits for its failure.
void Coordinator::settle_if_complete(const std::string& name) {
  if (doomed_.contains(name)) return;
  const auto found = tallies_.find(name);
  const RequestTally& counted = found->second;
  const Request& asked = *first_given(counted.requests);
  int missing = static_cast<int>(members_.size()) - counted.count;
  // Usually every member must ask. Then the count alone says whether one is missing.
  const bool some_need_not = joined_count_ > 0 || asked.kind == OpKind::kAddProcessSet;
  for (std::size_t i = 0; missing > 0 && some_need_not && i < members_.size(); ++i) {
    if (!counted.requests[i] && (joined_[i] || !asked.asks(members_[i]))) --missing;
  }
  if (missing > 0 && left_.ok()) return;
  RequestTally tally = std::move(found->second);
  tallies_.erase(found);
  decide(settle(std::move(tally)));
}

Coordinator::Settled Coordinator::settle(RequestTally tally) {
  const int size = static_cast<int>(members_.size());
  const auto known = slot_by_name_.find(first_given(tally.requests)->name);
  // The usual case: all members have announced the slot. Then the tally and the slot have the same request objects, and no
  // field has to be compared. The slot has a request of every member. So if the objects are the same, no member is missing.
  if (left_.ok() && known != slot_by_name_.end() &&
      slots_[known->second].requests == tally.requests) {
    return {slots_[known->second].response, {}, true};
  }
  Response response = validate(tally.requests, members_);
  if (join_refuses_others_ && response.error.ok()) {
    response.error = refuse_without_joined(tally.requests, members_);
  }
  response.divisor = divisor_of(tally);
  // Replaces any error from above, which may be wrong: validate() treats each member that has not asked as joined.
  if (!left_.ok()) {
    response.error = of_operation(*response.request, left_);
  }
  // A slot needs a request of every member, because any member may announce the slot later.
  const bool keep = response.error.ok() && tally.count == size && cacheable(response.request->kind);
  auto shared = std::make_shared<const Response>(std::move(response));
  return {std::move(shared), keep ? std::move(tally.requests) : std::vector<RequestPtr>(), false};
}

// The number of members that an Average counts; 0: all. A member is not counted if it has not asked for the operation, and if
// its join said that an Average is not to count it.
std::int32_t Coordinator::divisor_of(const RequestTally& tally) const {
  std::int32_t uncounted = 0;
  for (std::size_t i = 0; joined_count_ > 0 && i < members_.size(); ++i) {
    if (uncounted_[i] && !tally.requests[i]) ++uncounted;
  }
  return uncounted == 0 ? 0 : static_cast<std::int32_t>(members_.size()) - uncounted;
}

void Coordinator::decide(Settled settled) {
  const Request& request = *settled.response->request;
  settled_names_.insert(request.name);
  if (!request.in_group()) {
    decided_.push_back(std::move(settled));
  } else {
    decide_in_group(std::move(settled));
  }
}

// The operations of a group are decided together, in the order of the group, or all fail. The first failure is decided at once,
// so that no caller waits for the rest of the group. An example with the group a, b, c:
//
//    a is settled          a waits in `ready`
//    b is settled, fails   b and a are decided, both with the error of b
//    c is settled          c is decided with the error of b, although c itself has no fault; groups_ forgets the group
void Coordinator::decide_in_group(Settled settled) {
  const std::string label = settled.response->request->group;
  const int size = settled.response->request->group_size;
  PendingGroup& group = groups_[label];
  ++group.settled;
  const bool first_failure = !settled.response->error.ok() && group.error.ok();
  if (first_failure) {
    group.error = settled.response->error;
    decided_.push_back(std::move(settled));
    for (const Settled& member : std::exchange(group.ready, {})) {
      decide_failure(member.response->request, group.error);
    }
  } else if (!group.error.ok()) {
    decide_failure(settled.response->request, group.error);
  } else {
    group.ready.push_back(std::move(settled));
  }
  if (group.settled < size) return;
  std::sort(group.ready.begin(), group.ready.end(), [](const Settled& a, const Settled& b) {
    return a.response->request->group_index < b.response->request->group_index;
  });
  for (Settled& member : group.ready) decided_.push_back(std::move(member));
  groups_.erase(label);
}

void Coordinator::decide_failure(RequestPtr request, Status why) {
  Response response;
  response.request = std::move(request);
  response.error = std::move(why);
  decided_.push_back({std::make_shared<const Response>(std::move(response)), {}, false});
}

// A join has no tally. joined_ says which members wait in the join. The join is decided when all members of the set wait in it.
// After a member has left, this can never happen, so the join fails at once.
void Coordinator::join(int member, const RequestPtr& request) {
  const auto index = static_cast<std::size_t>(member);
  HVD_CHECK(!joined_[index]);
  joined_[index] = true;
  uncounted_[index] = request->root != 0;
  ++joined_count_;
  // Operations that lacked only this member are settled now, in the order of their names and not in that of the hash table.
  std::vector<std::string> names;
  names.reserve(tallies_.size());
  for (const auto& [name, tally] : tallies_) names.push_back(name);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) settle_if_complete(name);
  if (!left_.ok() || joined_count_ == static_cast<int>(members_.size())) {
    end_join(request, members_[index]);
  }
}

// Ends the join for all members: no member counts as joined any more, and each may join again.
void Coordinator::end_join(RequestPtr request, int last, Status error) {
  Response response;
  response.request = std::move(request);
  response.value = last;
  response.error = std::move(error);
  if (!left_.ok()) {
    response.error = of_operation(*response.request, left_);
  }
  joined_.assign(members_.size(), false);
  uncounted_.assign(members_.size(), false);
  joined_count_ = 0;
  decided_.push_back({std::make_shared<const Response>(std::move(response)), {}, false});
}

void Coordinator::leave(const Status& why) {
  if (left_.ok()) left_ = why;
  std::vector<std::string> names;
  for (const RequestPtr& request : open()) names.push_back(request->name);
  // The members have not got these decisions yet, and the member that has left would take no part. So the operations fail.
  for (Settled& settled : std::exchange(decided_, {})) {
    const RequestPtr& request = settled.response->request;
    if (settled.response->error.ok()) {
      decide_failure(request, of_operation(*request, why));
    } else {
      decided_.push_back(std::move(settled));
    }
  }
  fail(names, why);
  if (joined_count_ > 0) end_join(name_only(set_, OpKind::kJoin, kJoinName), -1);
}

void Coordinator::fail(const std::vector<std::string>& names, const Status& why) {
  std::set<std::string> failing(names.begin(), names.end());
  const std::vector<RequestPtr> counted = open();
  std::set<std::string> lost_groups;  // without one of its operations a group can never complete
  for (const RequestPtr& request : counted) {
    if (request->in_group() && failing.contains(request->name)) lost_groups.insert(request->group);
  }
  const auto fail_one = [&](const RequestPtr& request) {
    // The number that collect() will give to the list with this failure.
    failed_at_[request->name] = sequence_ + 1;
    // A verdict's text names the operations. The text about a member that has left names none.
    decide_failure(request, left_.ok() ? why : of_operation(*request, why));
  };
  // This loop removes the names of `counted` from `failing`.
  for (const RequestPtr& request : counted) {
    if (failing.erase(request->name) == 0 && !lost_groups.contains(request->group)) continue;
    tallies_.erase(request->name);
    fail_one(request);
  }
  for (const std::string& group : lost_groups) groups_.erase(group);
  // The names that are left in `failing` fail, too: perhaps a member has an operation of this name, but has not announced it to
  // the coordinator, for example because the operation waits until the port begins.
  for (const std::string& name : failing) {
    if (name == kJoinName && joined_count_ > 0) {
      failed_at_[name] = sequence_ + 1;
      end_join(name_only(set_, OpKind::kJoin, kJoinName), -1, why);
    } else {
      fail_one(name_only(set_, OpKind::kAllreduce, name));
    }
  }
}

// An operation that is not counted is decided already, or no member has announced it to the coordinator. Its name is removed,
// because fail() would decide a failure for that name, too, and this failure could end the next operation of the name.
void Coordinator::fail_counted(std::vector<std::string> names, const Status& why) {
  std::set<std::string> counted;
  for (const RequestPtr& request : open()) counted.insert(request->name);
  if (joined_count_ > 0) counted.insert(kJoinName);
  for (const std::string& name : names) doomed_.erase(name);
  std::erase_if(names, [&](const std::string& name) { return !counted.contains(name); });
  fail(names, why);
}

// Members fill the slots of their caches in the order of the list, so the coordinator must do the same. Therefore collect()
// assigns the slots. In settle() the order could be another one: a group's operations are settled in any order.
std::vector<Decision> Coordinator::collect() {
  std::vector<Decision> decisions;
  if (decided_.empty()) return decisions;
  ++sequence_;
  for (Settled& settled : std::exchange(decided_, {})) {
    settled_names_.erase(settled.response->request->name);
    if (settled.hit) {
      touch(slots_[static_cast<std::size_t>(settled.response->slot)]);
    } else if (!settled.requests.empty()) {
      remember(settled);
    }
    decisions.push_back({std::move(settled.response), settled.hit});
  }
  return decisions;
}

// Writes the slot number into a copy of the response, because a response does not change once it is shared. A name whose
// requests have changed keeps its slot, and the slot gets the new requests and the new response.
void Coordinator::remember(Settled& settled) {
  const std::string& name = settled.response->request->name;
  const std::optional<std::uint32_t> slot = slot_for(name);
  if (!slot) return;
  AssignedSlot& assigned = slots_[*slot];
  // Perhaps the slot had another name before.
  if (assigned.response) slot_by_name_.erase(assigned.response->request->name);
  auto response = std::make_shared<Response>(*settled.response);
  response->slot = static_cast<std::int32_t>(*slot);
  settled.response = response;
  assigned.response = std::move(response);
  assigned.requests = std::move(settled.requests);
  assigned.filled = sequence_;
  slot_by_name_[assigned.response->request->name] = *slot;
  touch(assigned);
}

// Chooses the name's own slot, a new one, or the least recently used one whose name is not under negotiation (counted, or
// settled and not collected). If a name under negotiation lost its slot, members that had announced the name by the slot would
// announce it again, and the coordinator would treat that as an error (add) or as the next operation. Returns nothing if no
// slot is found.
std::optional<std::uint32_t> Coordinator::slot_for(const std::string& name) {
  const auto own = slot_by_name_.find(name);
  if (own != slot_by_name_.end()) return own->second;
  if (slots_.size() < capacity_) {
    const auto slot = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back();
    slots_.back().recency = recency_.insert(recency_.begin(), slot);
    return slot;
  }
  int tries = kEvictionTries;
  for (auto candidate = recency_.rbegin(); candidate != recency_.rend() && tries > 0;
       ++candidate, --tries) {
    const std::string& victim = slots_[*candidate].response->request->name;
    if (tallies_.contains(victim) || settled_names_.contains(victim)) continue;
    return *candidate;
  }
  return std::nullopt;
}

// Moves the slot to the front of the list. The iterator in the slot stays valid.
void Coordinator::touch(AssignedSlot& assigned) {
  recency_.splice(recency_.begin(), recency_, assigned.recency);
}

}  // namespace hvdlite::engine
