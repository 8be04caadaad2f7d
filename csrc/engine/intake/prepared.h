// Groups of requests that are checked once and submitted again and again. A later submission gives only what may change: the
// addresses, which values are absent, the weight and the stream.
// Thread: any; one lock, held for a few stores. Owns: the groups. Blocks: no. Throws: find() throws Error(InvalidArgument) for
// an id that names no group.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/model/request.h"

namespace hvdlite::engine {

// Allreduces in place on one process set.
struct PreparedGroup {
  // The request with a value of this rank, and without one.
  struct RequestPair {
    RequestPtr present;
    RequestPtr absent;
  };
  struct Member {
    RequestPair anywhere;
    RequestPair in_arena;         // the request if the tensor lies at `place`
    const void* place = nullptr;  // in the arena; null: the member has no place there
  };
  std::vector<Member> members;
  std::int64_t arena = 0;  // the arena of the places
};
using PreparedGroupPtr = std::shared_ptr<const PreparedGroup>;

class PreparedGroups {
 public:
  // Returns the id. This process has never used it before, so an id of an earlier engine names nothing here.
  std::int64_t add(PreparedGroupPtr group);
  PreparedGroupPtr find(std::int64_t id) const;
  void release(std::int64_t id);

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::int64_t, PreparedGroupPtr> groups_;
};

}  // namespace hvdlite::engine
