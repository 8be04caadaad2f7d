// Copies past the caches. An ordinary store to a line that no cache holds loads it first, and what a large result pushes out of
// the caches has to be written anyway: past them, a copy moves two thirds as much memory.
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <cstring>

namespace hvdlite::kernels {

// Pointers may have any alignment; the two do not overlap. Where a processor has no such stores this is memcpy. Other threads may
// see the bytes late, even after a later release store: see end_streaming.
void stream_copy(void* out, const void* in, std::size_t bytes);

// A copy past the caches, or through them.
inline void copy(void* out, const void* in, std::size_t bytes, bool streaming) {
  if (streaming) {
    stream_copy(out, in, bytes);
  } else {
    std::memcpy(out, in, bytes);
  }
}

// What this thread has streamed is visible before whatever it stores from now on.
void end_streaming();

}  // namespace hvdlite::kernels
