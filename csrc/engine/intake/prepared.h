// Groups of requests that are submitted again and again, checked once: submitting one takes their addresses only.
// Thread: any; one lock, held for a few stores. Owns: the groups. Blocks: no. Throws: Error(InvalidArgument).
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
  // As asked where this rank has a value, and where it has none.
  struct RequestPair {
    RequestPtr present;
    RequestPtr absent;
  };
  struct Member {
    RequestPair anywhere;
    RequestPair in_arena;         // where the tensor lies at `place`
    const void* place = nullptr;  // null: it has none
  };
  std::vector<Member> members;
  std::int64_t arena = 0;  // in which the places are
};
using PreparedGroupPtr = std::shared_ptr<const PreparedGroup>;

class PreparedGroups {
 public:
  // The id, never given before in this process: one of an earlier engine names nothing here.
  std::int64_t add(PreparedGroupPtr group);
  PreparedGroupPtr find(std::int64_t id) const;
  void release(std::int64_t id);

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::int64_t, PreparedGroupPtr> groups_;
};

}  // namespace hvdlite::engine
