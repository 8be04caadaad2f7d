// The ranks of the job as one rank sees them: their hosts, the process sets, and which ranks have left.
// Thread: one at a time. Owns: the lists. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

class Roster {
 public:
  using Members = std::shared_ptr<const std::vector<int>>;  // ascending

  struct Rank {
    int host = 0;             // the lowest rank of its host, the leader
    std::string description;  // "rank 1 (host a, pid 17)"
    bool left = false;        // with or without a failure
  };
  // me: this rank. ranks: all ranks of the job, in order.
  Roster(int me, std::vector<Rank> ranks) : me_(me), ranks_(std::move(ranks)) {}

  int rank() const { return me_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return at(rank).host; }
  const std::string& describe(int rank) const { return at(rank).description; }
  bool has_left(int rank) const { return at(rank).left; }
  // The other ranks that have not left.
  std::vector<int> others() const;
  // The rank has left or failed.
  void leave(int rank);

  void add_set(SetId id, Members members) { sets_[id] = std::move(members); }
  void remove_set(SetId id) { sets_.erase(id); }
  // Empty if there is no such set.
  const std::vector<int>& members_of(SetId id) const;
  // The other ranks that have to ask as well before this operation can run, including ranks that have left. Empty if its set
  // does not exist.
  std::vector<int> needed_for(const Request& request) const;

  // Adds to a digest (Membership::digest) which ranks have left.
  void add_to(base::Hasher& hasher) const;

 private:
  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  int me_;
  std::vector<Rank> ranks_;
  std::map<SetId, Members> sets_;
};

}  // namespace hvdlite::engine
