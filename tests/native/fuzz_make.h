// Valid messages of every kind, with content drawn from the input.
// Thread: one. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <span>

#include "engine/model/messages.h"
#include "fuzz_draw.h"

namespace hvdlite::fuzz {

engine::Message make_message(Draw& draw);
// Of a set of three members, 0 to 2.
engine::Request make_request(Draw& draw, engine::SetId set);

// The bytes as the address of an arena's part, which must not be followed anywhere.
void take_address(std::span<const std::byte> bytes);

}  // namespace hvdlite::fuzz
