// What ranks have agreed to do, and what of it runs as one.
// Thread: plain values. Owns: their content. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/request.h"

namespace hvdlite::engine {

// One operation that all members agreed to do.
struct Agreed {
  RequestPtr request;
  std::int32_t contributors = 0;  // members that gave a value
  bool failed = false;            // agreed to be an error
  std::int32_t divisor = 0;       // of an Average; 0: the number of members
};

// Executed as one collective; a single operation is a FusedOp too.
struct FusedOp {
  std::vector<Agreed> parts;
  std::vector<std::int64_t> sizes;  // the response's, of an operation by itself

  const Request& first() const { return *parts.front().request; }
};

}  // namespace hvdlite::engine
