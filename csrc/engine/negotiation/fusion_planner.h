// Which agreed operations run as one: the boundaries of FusedOps in a list of agreements. Pure.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/entry.h"

namespace hvdlite::engine {

// Allreduces with one dtype, wire dtype, op, kind of memory (host or GPU), factors and group are joined up to threshold bytes,
// looking past operations that do not fit; the order of the rest is kept. Members of a group arrive together, in the order of group_index, and share a buffer
// with no other tensor: their layout does not depend on timing, so neither do the bits of their sums.
// ranks: members of the process set (a Min, Max or Product is fused only if all of them give a value).
// Gives the places in the list that make each FusedOp.
std::vector<std::vector<std::uint32_t>> plan_fusion(std::span<const AgreedOperation> agreed,
                                                    std::size_t threshold, int ranks);

}  // namespace hvdlite::engine
