// The coordinator, on the first rank of a process set: counts which members asked for what, and decides the order of the
// operations. A pure state machine.
// Thread: the holder of the progress token. Owns: the tallies and the coordinator's side of the response cache. Blocks: no.
// Throws: Error(Internal) on announcements that no correct member sends.
//
// The life of a name: some members announce it (RequestTally) -> it is settled when each member that must ask has announced it
// or has joined -> if it belongs to a group, it waits until the whole group is settled or an operation of the group has failed
// -> it is decided -> collect() puts it into the next response list. The coordinator "counts" a name from its first
// announcement until it is decided.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

class Coordinator {
 public:
  // join_refuses_others: while members have joined, some kinds of operations fail (refuse_without_joined() in validate.h).
  Coordinator(SetId set, std::vector<int> members, std::size_t cache_capacity,
              bool join_refuses_others);

  // A member asks for an operation, in full or by a slot of the response cache. When the member announced the operation, it had
  // processed the response lists up to number `seen`. Returns the request. The announcement is void, and the result null, if a
  // response list with a number above `seen` fails the operation, or gives the slot to another request.
  RequestPtr announce(int member, RequestPtr request, std::uint64_t seen);
  RequestPtr announce_slot(int member, std::uint32_t slot, std::uint64_t seen);
  // A member has left. All operations of the set that collect() has not returned fail with this text, and so do all that are
  // announced later. Operations that have failed already keep their own text.
  void leave(const base::Status& why);
  // Fails these operations on every member, for example after a verdict of deadlock detection. If one of them belongs to a
  // group, all operations of the group that the coordinator counts fail as well.
  void fail(const std::vector<std::string>& names, const base::Status& why);

  // The caller must call fail_counted() for these operations later. Until then the coordinator settles none of them, not even
  // if the last missing member asks: the operation would run although a verdict says that it never can. Two kinds can still be
  // decided: a join, which is never settled, and an operation that was settled before and waits for its group.
  void doom(const std::vector<std::string>& names) { doomed_.insert(names.begin(), names.end()); }
  // Fails those of these operations that the coordinator still counts. After the call no operation of `names` is doomed.
  void fail_counted(std::vector<std::string> names, const base::Status& why);

  // Must all operations go through messages, and none through the set's port? This is so while members have joined or left.
  bool needs_messages() const { return joined_count_ > 0 || !left_.ok(); }
  // One request for each name that the coordinator counts. Joins are not included.
  std::vector<RequestPtr> open() const;

  bool has_decisions() const { return !decided_.empty(); }
  // Calls visit(const Request&) for each request that collect() would return.
  template <typename Visit>
  void for_each_decided(Visit visit) const {
    for (const Settled& settled : decided_) visit(*settled.response->request);
  }
  // All decisions since the last call, in the order of execution. They become response list number sequence().
  std::vector<Decision> collect();
  // The member whose request led to the latest decision since the previous call. -1: since that call, no request has led to a
  // decision.
  int take_last() { return std::exchange(last_, -1); }
  std::uint64_t sequence() const { return sequence_; }
  void add_to(base::Hasher& hasher) const;

 private:
  struct RequestTally {
    std::vector<RequestPtr> requests;  // by member
    int count = 0;                     // members that announced it
  };
  struct Settled {
    ResponsePtr response;
    std::vector<RequestPtr> requests;  // by member; empty: do not cache it
    // As Decision::hit.
    bool hit = false;
  };
  // ready: settled operations of the group that are not decided. settled: how many of the group's operations are settled, with
  // or without an error.
  struct PendingGroup {
    std::vector<Settled> ready;
    int settled = 0;
    base::Status error;  // of the first operation that failed; the others fail with the same one
  };
  struct AssignedSlot {
    ResponsePtr response;
    std::vector<RequestPtr> requests;  // by member
    std::uint64_t filled = 0;          // number of the response list that gave the slot its request
    std::list<std::uint32_t>::iterator recency;
  };

  // As announce(), for a request that has been checked already.
  RequestPtr count(int member, RequestPtr request, std::uint64_t seen);
  void add(int member, RequestPtr request);
  std::int32_t divisor_of(const RequestTally& tally) const;
  void settle_if_complete(const std::string& name);
  Settled settle(RequestTally tally);
  void decide(Settled settled);
  void decide_in_group(Settled settled);
  void join(int member, const RequestPtr& request);
  // last: the rank that joined last; without meaning if the join fails.
  void end_join(RequestPtr request, int last, base::Status error = {});
  void decide_failure(RequestPtr request, base::Status why);
  void remember(Settled& settled);
  std::optional<std::uint32_t> slot_for(const std::string& name);
  void touch(AssignedSlot& assigned);

  SetId set_;
  std::vector<int> members_;
  std::size_t capacity_;
  bool join_refuses_others_;
  std::uint64_t sequence_ = 0;
  std::unordered_map<std::string, RequestTally> tallies_;
  std::unordered_map<std::string, PendingGroup> groups_;
  std::vector<Settled> decided_;
  // Names that are settled but not collected. Their slots must not be given to other names.
  std::unordered_set<std::string> settled_names_;
  // Of each name that fail() has failed: the number of the response list that tells the members so. Announcements with a
  // smaller `seen` are void.
  std::unordered_map<std::string, std::uint64_t> failed_at_;
  std::set<std::string> doomed_;
  std::vector<bool> joined_;
  std::vector<bool> uncounted_;  // members that have joined and that an Average does not count
  int joined_count_ = 0;
  base::Status left_;  // not ok after a member has left
  int last_ = -1;      // see take_last()

  std::vector<AssignedSlot> slots_;
  std::unordered_map<std::string, std::uint32_t> slot_by_name_;
  std::list<std::uint32_t> recency_;  // most recent first
};

}  // namespace hvdlite::engine
