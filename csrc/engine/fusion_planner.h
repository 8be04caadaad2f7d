// Which agreed operations run as one: the boundaries of FusedOps in a list of responses. Pure.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/request.h"

namespace hvdlite::engine {

// A run of responses executed as one collective on one fusion buffer; a single response is a FusedOp too.
using FusedOp = std::vector<ResponsePtr>;

// Allreduces with one dtype, op, device, factors and group are joined up to threshold bytes, looking past responses that do
// not fit; the order of the rest is kept. Members of a group arrive together, in the order of group_index, and share a buffer
// with no other tensor: their layout does not depend on timing, so neither do the bits of their sums.
// ranks: members of the process set (a Min, Max or Product is fused only if all of them give a value).
std::vector<FusedOp> plan_fusion(const std::vector<ResponsePtr>& responses, std::size_t threshold,
                                 int ranks);

}  // namespace hvdlite::engine
