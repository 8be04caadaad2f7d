// Checks a request when it is submitted or prepared. Refuses everything that this rank can refuse without other ranks, before
// anything is sent.
// Thread: any. Owns: nothing. Blocks: no. Throws: Error(InvalidArgument, Unsupported), which names the operation and the
// reason.
#pragma once

#include <memory>

#include "device/devices.h"
#include "engine/intake/arenas.h"
#include "engine/intake/device_memory.h"
#include "engine/intake/shared_state.h"
#include "engine/model/request.h"
#include "transport/arena.h"

namespace hvdlite::engine {

// The process set that the view names. Refuses a set of which this rank is no member.
SetDirectory::Info set_of(const RequestView& view, const SetDirectory& sets, int rank);
// Returns the checked request. world: the number of ranks in the job.
RequestPtr check_request(const RequestView& view, const SetDirectory::Info& set,
                         const SetDirectory& sets, int world, device::Devices& devices);
// The arena that the view names. Writes the tensor's offset there into the view. A tensor without bytes lies in no arena.
std::shared_ptr<const transport::Arena> locate(RequestView& view, const SetDirectory::Info& set,
                                               const ArenaDirectory& arenas, const void* input,
                                               const void* output);
void check_memory(const Request& request, const void* input, const void* output,
                  device::Devices& devices, KnownAddresses& known);

}  // namespace hvdlite::engine
