// Decides which agreed operations run as one FusedOp. A pure function.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/entry.h"

namespace hvdlite::engine {

// Joins allreduces with one dtype, wire dtype, codec, op, kind of memory (host or GPU), factors and group, up to `threshold` bytes. It
// skips operations that do not fit, and keeps the order of the others. Members of a group arrive together, in the order of
// group_index, and share a buffer with no other tensor. So their layout does not depend on timing, and neither do the bits of
// their sums. ranks: the number of members; a Min, Max or Product is fused only if all of them give a value. Returns for each
// FusedOp the places of its operations in the list.
std::vector<std::vector<std::uint32_t>> plan_fusion(std::span<const AgreedOperation> agreed,
                                                    std::size_t threshold, int ranks);

}  // namespace hvdlite::engine
