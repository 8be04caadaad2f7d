// Checks what other ranks send, before this rank uses it: could a correct rank have sent it, and does it fit what this rank
// asked for? The decoder (messages.cc) has already refused unknown codes and impossible shapes.
// Thread: pure functions, any. Owns: nothing. Blocks: no. Throws: Error(Internal), which names the operation and the fault.
//
// The checks keep a bug or a damaged message from writing outside a tensor's memory. They are no defence against a malicious
// rank, which could falsify the tensors as well.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/entry.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

// Checks a request that a member of this set sent in full. members: of the set, ascending.
void check_received(const Request& request, SetId set, const std::vector<int>& members);
// Checks a response that the coordinator of this set sent in full.
void check_received(const Response& response, SetId set, const std::vector<int>& members);

// Can one tensor hold the rows of all members? sizes: the numbers of rows (Response::sizes). request: has the dtype, and the
// shape of a row.
bool rows_fit_in_tensor(const Request& request, std::span<const std::int64_t> sizes);

// Checks an agreed response that has no error (Response::error), before this rank carries it out. mine: the entry with which
// this rank asked for that name; null if it did not ask. joined: has this rank joined or left? If this rank did not ask, a
// barrier or an operation that moves data fits only if `joined` is true. index: of this rank among the members.
void check_fits(const Response& response, const Entry* mine, bool joined,
                const std::vector<int>& members, int index);

}  // namespace hvdlite::engine
