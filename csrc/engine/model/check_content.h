// The checks of a request that need only the request, the members of its set and the number of ranks. A caller's request must
// pass these checks before anything is sent. A request that another rank has sent must pass them again.
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
// set with unsorted ranks. So for a caller's request, check_request fills in the splits and sorts the ranks before it calls
// check_content. Does not check the name, the GPU, the arena, or the peer and tag of a send or receive.
void check_content(const Request& request, const std::vector<int>& members, int world);

}  // namespace hvdlite::engine
