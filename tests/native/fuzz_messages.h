// The targets of the fuzzer: each takes any bytes and returns, or the process dies.
// Thread: one. Owns: nothing. Blocks: no. Throws: nothing; what is thrown inside is caught there if it is what the decoders
// promise (Error(Internal)), and ends the process if not.
#pragma once

#include <cstdint>
#include <span>

#include "fuzz_draw.h"

namespace hvdlite::fuzz {

// Ends the process with this text.
[[noreturn]] void die(const char* what);
inline void expect(bool condition, const char* what) {
  if (!condition) die(what);
}

// The bytes as they are, through every decoder.
void decode_raw(std::span<const std::uint8_t> input);
// A valid message of some kind, changed in some places: decoded, validated, planned, encoded again.
void decode_mutated(Draw& draw);
// A job of two or three ranks in one thread, whose messages and shared memory are changed on the way. kind: of the job.
void run_job(Draw& draw);

// What was found and mended: each dies where the mending is taken away. Gives how many there are.
int run_cases();

// One input: its first byte says which target.
void run_input(std::span<const std::uint8_t> input);

}  // namespace hvdlite::fuzz
