// A 64-bit digest of memory, at the memory's speed.
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: nothing.
//
// Eight lanes take one word in eight each: word w takes the lane's state s to rotl(s ^ w, 27) * k with an odd k, which is a
// bijection. A `Hasher` (hash.h) makes the digest of the size and the lanes. So memory that differs in one word never has the
// same digest; other memory of the same size has the same digest with a probability of about 2^-64. The digest depends on
// bytes, not on numbers: -0.0 differs from 0.0. The bytes after the last whole word are filled up with zeros to a word.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvdlite::base {

std::uint64_t digest(const void* memory, std::size_t bytes);

}  // namespace hvdlite::base
