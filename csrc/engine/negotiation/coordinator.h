// Rank 0 of a process set counts who asked for what, and says in one order what is to be done. Pure: no I/O, no threads.
// Thread: the holder of the progress token. Owns: the tallies and its side of the response cache. Blocks: no.
// Throws: Error(Internal) on announcements that no correct member sends.
//
// A name's life: announced by some members (RequestTally) -> announced by all that have not joined: settled -> if it belongs to a
// group, kept until the whole group is settled -> decided -> collected into the next response list.
#pragma once

#include <cstdint>
#include <list>
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
  // join_refuses_others: while members have joined, allreduce alone runs.
  Coordinator(SetId set, std::vector<int> members, std::size_t cache_capacity,
              bool join_refuses_others);

  // Member `member` asks, in full or by a slot of the response cache, having processed the response lists up to `seen`. The
  // request, or null where that is void.
  RequestPtr announce(int member, RequestPtr request, std::uint64_t seen);
  RequestPtr announce_slot(int member, std::uint32_t slot, std::uint64_t seen);
  // The member said goodbye or died: whatever needs it fails, now and later, with this text.
  void leave(int member, const base::Status& why);
  // Takes these operations out of the books and fails them everywhere (the verdict of deadlock detection).
  void fail(const std::vector<std::string>& names, const base::Status& why);

  // The same is about to be done: until then nothing is decided of them, whoever asks. One that fails could let a member ask for
  // another, which would be done here, with those that were told that it never will be.
  void doom(const std::vector<std::string>& names) { doomed_.insert(names.begin(), names.end()); }
  // Fails them, but for what has ended meanwhile.
  void fail_doomed(const std::vector<std::string>& names, const base::Status& why);

  // Must everything go through messages, because somebody has joined or left?
  bool needs_messages() const { return joined_count_ > 0 || !left_.ok(); }
  // Is this name being counted, or waiting for its group?
  bool knows(const std::string& name) const;
  // The requests of all such names, one each.
  std::vector<RequestPtr> open() const;

  bool has_decisions() const { return !decided_.empty(); }
  // Calls visit(const Request&) for all that collect() would give.
  template <typename Visit>
  void for_each_decided(Visit visit) const {
    for (const Settled& settled : decided_) visit(*settled.response->request);
  }
  // Everything decided since the last call in the order to execute; it is response list number sequence().
  std::vector<Decision> collect();
  // The member with whose request the latest of them was decided, -1 if it was without one. Asked before collect().
  int take_last() { return std::exchange(last_, -1); }
  std::uint64_t sequence() const { return sequence_; }
  void add_to(base::Hasher& hasher) const;

 private:
  struct RequestTally {
    std::vector<RequestPtr> requests;  // by member
    int count = 0;
    int hits = 0;  // members that came by slot
    std::uint32_t slot = 0;
  };
  struct Settled {
    ResponsePtr response;
    std::vector<RequestPtr> requests;  // by member; empty: not to be cached
    bool hit = false;
  };
  struct PendingGroup {
    std::vector<Settled> ready;
    int settled = 0;
    base::Status error;  // of the first member that failed; all others follow it
  };
  struct AssignedSlot {
    ResponsePtr response;
    std::vector<RequestPtr> requests;  // by member, shared where equal
    std::uint64_t filled = 0;          // number of the response list that told the members
    std::list<std::uint32_t>::iterator recency;
  };

  RequestTally& add(int member, RequestPtr request);
  std::int32_t divisor_of(const RequestTally& tally) const;
  void settle_if_complete(const std::string& name);
  Settled settle(RequestTally tally);
  void decide(Settled settled);
  void decide_in_group(Settled settled);
  void join(int member, const RequestPtr& request);
  // last: the last to join, unless the join fails.
  void end_join(RequestPtr request, int last, base::Status error = {});
  void decide_failure(RequestPtr request, base::Status why);
  void remember(Settled& settled);
  bool slot_for(const std::string& name, std::uint32_t* slot);
  void touch(AssignedSlot& line);

  SetId set_;
  std::vector<int> members_;
  std::size_t capacity_;
  bool join_refuses_others_;
  std::uint64_t sequence_ = 0;
  std::unordered_map<std::string, RequestTally> tallies_;
  std::unordered_map<std::string, PendingGroup> groups_;
  std::vector<Settled> decided_;
  // Settled but not collected: their cache lines must not be replaced before.
  std::unordered_set<std::string> settled_names_;
  // Announcements made before this response list was known are void.
  std::unordered_map<std::string, std::uint64_t> failed_at_;
  std::set<std::string> doomed_;
  std::vector<bool> joined_;
  std::vector<bool> uncounted_;  // joined, and an Average is not to count them
  int joined_count_ = 0;
  base::Status left_;  // not ok once a member has left
  int last_ = -1;

  std::vector<AssignedSlot> lines_;
  std::unordered_map<std::string, std::uint32_t> slot_by_name_;
  std::list<std::uint32_t> recency_;  // most recent first
};

}  // namespace hvdlite::engine
