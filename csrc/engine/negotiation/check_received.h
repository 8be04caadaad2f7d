// What comes from other ranks is checked before it is used: what no correct rank sends, and what does not fit what this rank asked.
// The decoders (request.h, messages.h) have refused by then what cannot be represented.
// Thread: pure functions, any. Owns: nothing. Blocks: no. Throws: Error(Internal) naming the operation and what is wrong.
//
// This is no defence against a rank that means harm, which could do so in the tensors as well: it keeps a bug or a damaged message
// from becoming a write to memory that is not the tensor's.
#pragma once

#include <vector>

#include "engine/model/entry.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

// A request that a member of this set sent in full. members: of the set, ascending.
void check_received(const Request& request, SetId set, const std::vector<int>& members);
// A response that the coordinator of this set sent in full.
void check_received(const Response& response, SetId set, const std::vector<int>& members);

// An agreed response, no error, before it is carried out. mine: what this rank asked for under that name, null if nothing,
// which is right if it takes part without having asked (joined). index: of this rank among the members.
void check_fits(const Response& response, const Entry* mine, bool joined,
                const std::vector<int>& members, int index);

}  // namespace hvdlite::engine
