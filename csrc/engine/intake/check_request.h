// What is checked of a request when it is submitted or prepared: everything that this rank alone can refuse, before anything is
// sent.
// Thread: any. Owns: nothing. Blocks: no. Throws: Error(InvalidArgument, Unsupported) naming the operation, and why it is refused.
#pragma once

#include <memory>

#include "device/devices.h"
#include "engine/intake/arenas.h"
#include "engine/intake/device_memory.h"
#include "engine/intake/shared_state.h"
#include "engine/model/request.h"
#include "transport/arena.h"

namespace hvdlite::engine {

// The process set that the view names, of which this rank has to be a member.
SetDirectory::Info set_of(const RequestView& view, const SetDirectory& sets, int rank);
// The request, sealed. world: ranks of the job.
RequestPtr check_request(const RequestView& view, const SetDirectory::Info& set,
                         const SetDirectory& sets, int world, device::Devices& devices);
// The arena that the view names, which gets the tensor's offset there; a tensor of no bytes lies in none.
std::shared_ptr<const transport::Arena> locate(RequestView& view, const SetDirectory::Info& set,
                                               const ArenaDirectory& arenas, const void* input,
                                               const void* output);
void check_memory(const Request& request, const void* input, const void* output,
                  device::Devices& devices, KnownAddresses& known);

}  // namespace hvdlite::engine
