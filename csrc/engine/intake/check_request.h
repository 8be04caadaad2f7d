// Checks a request when it is submitted or prepared, before anything is sent.
// Thread: any. Owns: nothing. Blocks: while the driver opens a GPU (at the GPU's first tensor) or loads the GPU's kernels (at
// the GPU's first reduction).
// Throws: Error(InvalidArgument, Unsupported, System), which names the operation and the reason; std::bad_alloc.
#pragma once

#include <memory>

#include "device/devices.h"
#include "engine/intake/arenas.h"
#include "engine/intake/device_memory.h"
#include "engine/intake/shared_state.h"
#include "engine/model/request.h"
#include "transport/arena.h"

namespace hvdlite::engine {

// The process set that the view names. Refuses a set that does not exist, and one of which this rank is no member.
SetDirectory::Info set_of(const RequestView& view, const SetDirectory& sets, int rank);
// Returns the checked request, sealed. Fills in even splits if an alltoall gives none, fills in the name of a join, and sorts
// the ranks of a new set. Refuses a request without a name, unless it is a join. world: the number of ranks in the job.
RequestPtr check_request(const RequestView& view, const SetDirectory::Info& set,
                         const SetDirectory& sets, int world, device::Devices& devices);
// For a view that names an arena: returns the arena, and writes the tensor's offset in the arena into the view. A tensor
// without bytes lies in no arena. For such a tensor locate() returns null, and changes the view so that it names no arena.
std::shared_ptr<const transport::Arena> locate(RequestView& view, const SetDirectory::Info& set,
                                               const ArenaDirectory& arenas, const void* input,
                                               const void* output);
// Refuses a request if memory that it needs is missing, or if memory is given for an output that only the engine makes. For a
// request on a GPU, also checks that the memory lies on that GPU, and, for reductions, that it is aligned for the GPU's
// kernels.
void check_memory(const Request& request, const void* input, const void* output,
                  device::Devices& devices, KnownAddresses& known);

}  // namespace hvdlite::engine
