// Copies of memory, also past the caches. An ordinary store to a line that no cache holds first loads the line, and the caches
// write it to memory later. A store past the caches does not load the line, so a large copy moves two thirds as many bytes.
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/cache_line.h"

namespace hvdlite::kernels {

// Pointers may have any alignment; the two buffers do not overlap. On processors other than x86-64 this is memcpy. Other
// threads may see the bytes late, even after a later release store: see end_streaming.
void stream_copy(void* out, const void* in, std::size_t bytes);

// The same by ordinary vector stores, which other threads see in order. On processors other than x86-64 this is memcpy.
void vector_copy(void* out, const void* in, std::size_t bytes);

// memcpy, except in one case: vector_copy for 2 KiB or more, if the offset of `out` in its page is larger than that of `in`, by
// less than a cache line. This happens between NumPy's large arrays, which begin 16 bytes into a page, and memory that begins
// with a page. From 2 KiB to some hundred KiB glibc copies with `rep movsb`. With these offsets the processor assumes that the
// next read depends on the last write, and the copy takes up to twenty times as long (seen on AMD's Zen 3).
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

// A copy past the caches if `streaming`, and through the caches otherwise.
inline void copy(void* out, const void* in, std::size_t bytes, bool streaming) {
  if (streaming) {
    stream_copy(out, in, bytes);
  } else {
    plain_copy(out, in, bytes);
  }
}

// Makes all data that this thread has streamed visible to other threads before this thread's later stores.
void end_streaming();

}  // namespace hvdlite::kernels
