// Groups of requests that are checked once and submitted again and again. A later submission gives only what may change: the
// addresses, which values are absent, the weight and the stream. (A prepared operation is something else:
// collectives/prepared.h.)
// Thread: any; one lock, held for a look-up, or while release() frees a group. Owns: the groups; operations in flight share the
// groups' requests. Blocks: no. Throws: find() throws Error(InvalidArgument) for an id that names no group; add()
// std::bad_alloc.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/model/request.h"

namespace hvdlite::engine {

// Allreduces in place, at least one: on one process set, with different names, all in host memory or all on one GPU, all
// weighted or none.
struct PreparedGroup {
  // Two requests that differ only in their field `absent`.
  struct RequestPair {
    RequestPtr present;  // for a submission in which this rank has a value
    RequestPtr absent;   // for one in which it has none
  };
  struct Member {
    RequestPair anywhere;         // if the tensor does not lie at `place`, or the arena is closed
    RequestPair in_arena;         // if the tensor lies at `place`
    const void* place = nullptr;  // in the arena; null: the member has no place there
  };
  std::vector<Member> members;
  std::int64_t arena = 0;  // the id of the arena of all places; 0: no member has a place
};
using PreparedGroupPtr = std::shared_ptr<const PreparedGroup>;

class PreparedGroups {
 public:
  // Returns the group's id. This process has never used that id before, so an id of an earlier engine names no group of this
  // engine.
  std::int64_t add(PreparedGroupPtr group);
  PreparedGroupPtr find(std::int64_t id) const;
  // Does nothing if the id names no group.
  void release(std::int64_t id);

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::int64_t, PreparedGroupPtr> groups_;
};

}  // namespace hvdlite::engine
