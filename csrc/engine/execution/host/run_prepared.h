// The beginning and the end of a prepared operation on host memory (collectives/prepared.h): parts_of() says how much of this
// rank's input each member needs, and run_prepared() makes the result.
// Thread: the holder of the progress token. Owns: nothing. Blocks: as OutputCache does. Throws: as
// collectives/prepared.h says, std::bad_alloc.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/prepared.h"
#include "engine/execution/operation.h"
#include "engine/model/entry.h"
#include "engine/model/output_cache.h"

namespace hvdlite::engine {

// For Preparation::kParts: how many bytes of this rank's inputs each member needs.
std::vector<std::size_t> parts_of(std::span<const Entry> unit, const ProcessSet& set);

// Makes the result of this rank's entry from the inputs of all members. The result of an allgather, alltoall or reducescatter
// lies where Extents::place() puts it.
void run_prepared(const collectives::PreparedInputs& inputs, const SharingSet& set,
                  const Entry& entry, OutputCache& outputs, kernels::Isa isa);

}  // namespace hvdlite::engine
