// Do the members of a process set ask for the same thing? Pure functions: no I/O, no state.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing; a disagreement is the Response's error.
#pragma once

#include <vector>

#include "engine/model/request.h"

namespace hvdlite::engine {

// requests[i] is what member i (global rank members[i]) asked; null means that it has joined. At least one is not null.
// The result carries what all agreed on, or one error text, the same for every rank, that names operation, tensor, process
// set, what differs on which ranks, and the remedy.
Response validate(const std::vector<RequestPtr>& requests, const std::vector<int>& members);

// As in Horovod, where ranks have joined that have not asked: not ok for what is no allreduce, for all ranks. Arguments as above.
base::Status refuse_without_joined(const std::vector<RequestPtr>& requests,
                                   const std::vector<int>& members);

}  // namespace hvdlite::engine
