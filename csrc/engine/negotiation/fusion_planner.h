// Decides which agreed operations run as one FusedOp. A pure function.
// Thread: any. Owns: nothing. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/entry.h"

namespace hvdlite::engine {

// Fuses allreduces that have the same dtype, wire dtype, codec, op, kind of memory (host or GPU), arena, prescale, postscale,
// divisor and group, up to `threshold` bytes, in the order of the list. An operation that does not fit into a FusedOp comes in
// a later one. An operation runs alone if it is no allreduce, if it has more than `threshold` bytes, if it has failed, if no
// member gives a value, or if it is weighted and has no group. The caller must put the operations of a group one after the
// other, in the order of group_index. The operations of a group are fused only with each other. So the layout of their buffer,
// and the bits of their sums, do not depend on timing.
// ranks: the number of members; ops other than Sum and Average are fused only if all members give a value. Returns for each
// FusedOp the places of its operations in the list.
std::vector<std::vector<std::uint32_t>> plan_fusion(std::span<const AgreedOperation> agreed,
                                                    std::size_t threshold, int ranks);

}  // namespace hvdlite::engine
