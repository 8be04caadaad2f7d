// The checks of a request that need only the request, the members of its set and the number of ranks. What a caller asks for
// passes them before anything is sent, and what another rank sends passes them again.
// Thread: pure functions, any. Owns: nothing. Blocks: no.
// Throws: Error(InvalidArgument, Unsupported), which names the operation and the reason; std::bad_alloc.
#pragma once

#include <string>
#include <vector>

#include "engine/model/request.h"

namespace hvdlite::engine {

// Throws an Error that names the operation.
[[noreturn]] void refuse(const Request& request, const std::string& why,
                         base::ErrorCode code = base::ErrorCode::kInvalidArgument);

// members: of the request's set, ascending. world: the number of ranks in the job. Refuses an alltoall without splits and a new
// set with unsorted ranks, so a caller's splits are filled in before, and the ranks sorted. Does not check the name, the GPU,
// the arena, or the peer and tag of a send or receive.
void check_content(const Request& request, const std::vector<int>& members, int world);

}  // namespace hvdlite::engine
