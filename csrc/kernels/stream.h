// Copies past the caches. An ordinary store to a line that no cache holds loads it first, and what a large result pushes out of
// the caches has to be written anyway: past them, a copy moves two thirds as much memory.
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/cache_line.h"

namespace hvdlite::kernels {

// Pointers may have any alignment; the two do not overlap. Where a processor has no such stores this is memcpy. Other threads may
// see the bytes late, even after a later release store: see end_streaming.
void stream_copy(void* out, const void* in, std::size_t bytes);

// The same by ordinary stores, which other threads see in order as any; where there are no vectors, memcpy.
void vector_copy(void* out, const void* in, std::size_t bytes);

// memcpy; but where `out` lies less than a line further on in its page than `in` does in its own, as NumPy's large arrays do (they
// begin 16 bytes into a page) beside memory that begins with a page, vector_copy. glibc copies from 2 KiB to some hundred KiB with
// `rep movsb`, which takes the next read for one of what was just written, and up to twenty times as long (seen on AMD's Zen 3).
inline void plain_copy(void* out, const void* in, std::size_t bytes) {
  constexpr std::uintptr_t kPage = 4096, kLine = base::kCacheLine;
  constexpr std::size_t kSmall = 2048;  // below every threshold of glibc's for that instruction
  const std::uintptr_t ahead =
      (reinterpret_cast<std::uintptr_t>(out) - reinterpret_cast<std::uintptr_t>(in)) % kPage;
  if (bytes < kSmall || ahead == 0 || ahead >= kLine) {
    std::memcpy(out, in, bytes);
  } else {
    vector_copy(out, in, bytes);
  }
}

// A copy past the caches, or through them.
inline void copy(void* out, const void* in, std::size_t bytes, bool streaming) {
  if (streaming) {
    stream_copy(out, in, bytes);
  } else {
    plain_copy(out, in, bytes);
  }
}

// Makes this thread's streamed data visible before its later stores.
void end_streaming();

}  // namespace hvdlite::kernels
