// Ends an operation on host memory that all members have prepared (collectives/prepared.h).
// Thread: the holder of the progress token. Owns: nothing. Blocks: no. Throws: as collectives/prepared.h says, std::bad_alloc.
#pragma once

#include "collectives/prepared.h"
#include "engine/model/entry.h"
#include "engine/model/output_cache.h"

namespace hvdlite::engine {

// Makes the result of this rank's entry from the inputs of all members. Takes memory for it from `outputs` if the caller has given
// none.
void run_prepared(const collectives::PreparedInputs& inputs, const ProcessSet& set,
                  const Entry& entry, OutputCache& outputs, kernels::Isa isa);

}  // namespace hvdlite::engine
