// Decides which agreed operations run as one FusedOp. A pure function.
// Thread: any. Owns: nothing. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/entry.h"

namespace hvdlite::engine {

// Fuses allreduces that have the same dtype, wire dtype, codec, op, kind of memory (host or GPU), arena, factors, divisor and
// group, up to `threshold` bytes, in the order of the list. Operations in between that do not fit come in later FusedOps. An
// operation of more than `threshold` bytes runs alone, and so does one that has failed or in which no member gives a value.
// Weighted allreduces are only fused within their group. In the list, the operations of a group follow each other in the order
// of group_index. They are fused only with each other. So the layout of their buffer does not depend on timing, and neither do
// the bits of their sums.
// ranks: the number of members; ops other than Sum and Average are fused only if all members give a value. Returns for each
// FusedOp the places of its operations in the list.
std::vector<std::vector<std::uint32_t>> plan_fusion(std::span<const AgreedOperation> agreed,
                                                    std::size_t threshold, int ranks);

}  // namespace hvdlite::engine
