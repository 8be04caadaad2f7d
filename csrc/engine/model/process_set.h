// One process set: who is in it, and at which place this rank is.
// Thread: plain values. Owns: nothing but its lists. Blocks: no. Throws: no.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "base/types.h"

namespace hvdlite::engine {

struct ProcessSet {
  base::SetId id;
  std::shared_ptr<const std::vector<int>> members;  // global ranks, ascending
  int index = -1;                                   // of this rank among them, -1: not a member

  int size() const { return static_cast<int>(members->size()); }
  bool is_member() const { return index >= 0; }
  int coordinator_rank() const { return members->front(); }
  // -1: not a member.
  int index_of(int rank) const {
    const auto found = std::ranges::lower_bound(*members, rank);
    return found != members->end() && *found == rank ? static_cast<int>(found - members->begin())
                                                     : -1;
  }
};

}  // namespace hvdlite::engine
