// Compiled with -mavx2 -mf16c; dispatch.cc uses it only if the processor has both features.
#include <immintrin.h>

#define HVD_KERNEL_NAMESPACE avx2
#define HVD_KERNEL_VECTOR_BYTES 32
#include "kernels/kernels_impl.h"

namespace hvdlite::kernels {
namespace avx2 {

template <>
struct Native<float> {
  HVD_INLINE static Pack<float> read_float16(const std::byte* from) {
    return _mm256_cvtph_ps(read_raw<__m128i>(from));
  }
  HVD_INLINE static void write_float16(std::byte* to, Pack<float> value) {
    write_raw(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  HVD_INLINE static Pack<std::uint32_t> read_uint16(const std::byte* from) {
    return Pack<std::uint32_t>(_mm256_cvtepu16_epi32(read_raw<__m128i>(from)));
  }
  HVD_INLINE static void write_uint16(std::byte* to, Pack<std::uint32_t> value) {
    // _mm256_packus_epi32 packs each 128-bit half by itself. So the eight results are in the 64-bit quarters 0 and 2.
    const __m256i halves = _mm256_packus_epi32(__m256i(value), __m256i(value));
    write_raw(to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0b1000)));
  }
  HVD_INLINE static Pack<float> lesser(Pack<float> a, Pack<float> b) { return _mm256_min_ps(a, b); }
};

template <>
struct Native<double> {
  HVD_INLINE static Pack<double> lesser(Pack<double> a, Pack<double> b) {
    return _mm256_min_pd(a, b);
  }
};

template <>
struct Native<std::int64_t> {
  template <class T>
  HVD_INLINE static Pack<std::int64_t> widen(const std::byte* from) {
    constexpr bool kSigned = std::is_signed_v<T>;
    if constexpr (sizeof(T) == 1) {
      const __m128i bytes = _mm_cvtsi32_si128(read_raw<int>(from));
      return Pack<std::int64_t>(kSigned ? _mm256_cvtepi8_epi64(bytes)
                                        : _mm256_cvtepu8_epi64(bytes));
    } else if constexpr (sizeof(T) == 2) {
      const __m128i words = _mm_cvtsi64_si128(read_raw<long long>(from));
      return Pack<std::int64_t>(kSigned ? _mm256_cvtepi16_epi64(words)
                                        : _mm256_cvtepu16_epi64(words));
    } else {
      const __m128i words = read_raw<__m128i>(from);
      return Pack<std::int64_t>(kSigned ? _mm256_cvtepi32_epi64(words)
                                        : _mm256_cvtepu32_epi64(words));
    }
  }
};

template <>
struct Native<std::uint32_t> {
  HVD_INLINE static Pack<std::uint32_t> read_bytes(const std::byte* from) {
    const __m128i bytes = _mm_cvtsi64_si128(read_raw<long long>(from));
    return Pack<std::uint32_t>(_mm256_cvtepu8_epi32(bytes));
  }
  HVD_INLINE static void write_bytes(std::byte* to, Pack<std::uint32_t> lanes) {
    const __m256i low = __m256i(lanes & 0xffU);
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    write_raw(to, _mm_cvtsi128_si64(_mm_packus_epi16(words, words)));
  }
};

}  // namespace avx2

constexpr KernelTable kAvx2Table = avx2::make_table();

}  // namespace hvdlite::kernels
