// The decisions of allreduce_hierarchical, as pure functions of facts that all members know.
// Thread: plain values, any thread. Owns: nothing. Blocks: no. Throws: no.
#pragma once

#include <cstddef>
#include <string_view>

#include "collectives/collective.h"
#include "collectives/host_map.h"
#include "collectives/host_stages.h"

namespace hvdlite::collectives {

// In `tuning`, segment_bytes must be that of the exchange between hosts, which is smaller than elsewhere: see kSegmentShare in
// the .cc file. (adds_in_order does not read it.)

// Rounds and slices of a buffer: small buffers have few owners, large buffers several rounds.
SlicePlan plan_slices(const AllreduceArgs& args, const HostMap& hosts, const Tuning& tuning);

// Are the sums of the hosts added in the order of the hosts, wherever an element lies?
bool adds_in_order(int hosts, const Tuning& tuning);

// The allreduce algorithm between the owners of a slice on this many hosts, for partials of this many bytes. same_type: results
// have the type of partials.
std::string_view algorithm_between_hosts(int hosts, std::size_t partial_bytes, bool same_type,
                                         const Tuning& tuning);

}  // namespace hvdlite::collectives
