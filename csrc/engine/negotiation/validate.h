// Do the members of a process set ask for the same thing? Pure functions: no I/O, no state.
// Thread: any. Owns: nothing. Blocks: no. Throws: std::bad_alloc. A fault of the requests is no exception: the result names it.
#pragma once

#include <vector>

#include "engine/model/request.h"

namespace hvdlite::engine {

// The first request that is not null. There must be one.
const RequestPtr& first_given(const std::vector<RequestPtr>& requests);

// requests[i] is the request of member i (global rank members[i]); null: the member has not asked. At least one member must
// have asked.
// The result carries what all agreed on, or one error text, the same for every rank. The text names the operation, the tensor,
// the process set, the differences by rank (or another fault), and the remedy.
Response validate(const std::vector<RequestPtr>& requests, const std::vector<int>& members);

// The rule of Horovod: returns an error if the operation moves data and is no allreduce, and some ranks have joined without
// asking for it. Allows an allgather whose `root` says that it may run without these ranks. Arguments as in validate().
base::Status refuse_without_joined(const std::vector<RequestPtr>& requests,
                                   const std::vector<int>& members);

}  // namespace hvdlite::engine
