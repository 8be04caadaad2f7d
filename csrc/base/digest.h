// A 64-bit digest of memory, at the memory's speed.
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: nothing.
//
// The memory is read as 64-bit words; its last 64 bytes are filled up with zeros if they are fewer. There are eight lanes, and
// each of them takes every eighth word: with a word w, the state s of a lane becomes rotl(s ^ w, 27) * k with an odd k, which
// is a bijection. At the end a `Hasher` (hash.h) makes the digest from the size and the states of the lanes. So two memories of
// one size that differ in exactly one word never have the same digest. If they differ in several words, they have the same
// digest with a probability of about 2^-64. The digest depends on bytes, not on numbers: -0.0 differs from 0.0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvdlite::base {

std::uint64_t digest(const void* memory, std::size_t bytes);

}  // namespace hvdlite::base
