#include "kernels/stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "base/cache_line.h"

#if HVDLITE_X86_KERNELS
#include <emmintrin.h>
#endif

namespace hvdlite::kernels {

#if HVDLITE_X86_KERNELS

using base::kCacheLine;

namespace {

template <bool past_caches>
void copy_lines(void* out, const void* in, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(out);
  const auto* from = static_cast<const std::byte*>(in);
  // Streams whole lines only, because a store of a part of a line past the caches would first load the rest of the line.
  const std::size_t gap = (~reinterpret_cast<std::uintptr_t>(to) + 1) % kCacheLine;
  const std::size_t head = std::min(gap, bytes);
  std::memcpy(to, from, head);
  std::size_t i = head;
  for (; i + kCacheLine <= bytes; i += kCacheLine) {
    __m128i line[kCacheLine / sizeof(__m128i)];
    for (std::size_t k = 0; k < std::size(line); ++k) {
      line[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i) + k);
    }
    for (std::size_t k = 0; k < std::size(line); ++k) {
      __m128i* const place = reinterpret_cast<__m128i*>(to + i) + k;
      if constexpr (past_caches) {
        _mm_stream_si128(place, line[k]);
      } else {
        _mm_store_si128(place, line[k]);
      }
    }
  }
  std::memcpy(to + i, from + i, bytes - i);
}

}  // namespace

void stream_copy(void* out, const void* in, std::size_t bytes) { copy_lines<true>(out, in, bytes); }

void vector_copy(void* out, const void* in, std::size_t bytes) {
  copy_lines<false>(out, in, bytes);
}

void end_streaming() { _mm_sfence(); }

#else

void stream_copy(void* out, const void* in, std::size_t bytes) { std::memcpy(out, in, bytes); }

void vector_copy(void* out, const void* in, std::size_t bytes) { std::memcpy(out, in, bytes); }

void end_streaming() {}

#endif

}  // namespace hvdlite::kernels
