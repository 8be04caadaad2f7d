// The two steps of a prepared allreduce: one before the members have agreed on it, and one after (allreduce_inline.cc explains
// why this is correct). Execution calls them.
// Thread: the holder of the progress token. Owns: nothing. Blocks: no. Throws: Error(Unsupported) for an element type and op
// that no kernel serves.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/collective.h"

namespace hvdlite::collectives {

// Puts this member's payload, which has at most channel.prepared_bytes(), where the others will look for it.
void prepare_inline(SharedChannel& channel, const void* input, std::size_t bytes);
// Call it when all members have put their payloads: reduces the payloads into the part's output.
void reduce_prepared(SharedChannel& channel, const AllreducePart& part, const Reduction& reduction,
                     kernels::Isa isa);
// The same for payloads that came in messages, by member. Throws Error(Internal) if one has another size than the part.
void reduce_payloads(const std::vector<std::vector<std::byte>>& payloads, const AllreducePart& part,
                     const Reduction& reduction, kernels::Isa isa);

}  // namespace hvdlite::collectives
