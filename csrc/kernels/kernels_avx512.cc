// Compiled with -mavx512{f,bw,dq,vl} -mf16c; dispatch.cc uses it only if the processor has all these features. The pragma is
// for gcc 12, which warns of undefined registers inside its own AVX-512 intrinsics (gcc's bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#define HVD_KERNEL_NAMESPACE avx512
#define HVD_KERNEL_VECTOR_BYTES 64
#include "kernels/kernels_impl.h"

namespace hvdlite::kernels {
namespace avx512 {

template <>
struct Native<float> {
  HVD_INLINE static Pack<float> read_float16(const std::byte* from) {
    return _mm512_cvtph_ps(read_raw<__m256i>(from));
  }
  HVD_INLINE static void write_float16(std::byte* to, Pack<float> value) {
    write_raw(to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  HVD_INLINE static Pack<std::uint32_t> read_uint16(const std::byte* from) {
    return Pack<std::uint32_t>(_mm512_cvtepu16_epi32(read_raw<__m256i>(from)));
  }
  HVD_INLINE static void write_uint16(std::byte* to, Pack<std::uint32_t> value) {
    write_raw(to, _mm512_cvtepi32_epi16(__m512i(value)));
  }
  HVD_INLINE static Pack<float> lesser(Pack<float> a, Pack<float> b) { return _mm512_min_ps(a, b); }
};

template <>
struct Native<double> {
  HVD_INLINE static Pack<double> lesser(Pack<double> a, Pack<double> b) {
    return _mm512_min_pd(a, b);
  }
};

template <>
struct Native<std::int64_t> {
  template <class T>
  HVD_INLINE static Pack<std::int64_t> widen(const std::byte* from) {
    constexpr bool kSigned = std::is_signed_v<T>;
    if constexpr (sizeof(T) == 1) {
      const __m128i bytes = _mm_cvtsi64_si128(read_raw<long long>(from));
      return Pack<std::int64_t>(kSigned ? _mm512_cvtepi8_epi64(bytes)
                                        : _mm512_cvtepu8_epi64(bytes));
    } else if constexpr (sizeof(T) == 2) {
      const __m128i words = read_raw<__m128i>(from);
      return Pack<std::int64_t>(kSigned ? _mm512_cvtepi16_epi64(words)
                                        : _mm512_cvtepu16_epi64(words));
    } else {
      const __m256i words = read_raw<__m256i>(from);
      return Pack<std::int64_t>(kSigned ? _mm512_cvtepi32_epi64(words)
                                        : _mm512_cvtepu32_epi64(words));
    }
  }
};

template <>
struct Native<std::uint32_t> {
  HVD_INLINE static Pack<std::uint32_t> read_bytes(const std::byte* from) {
    return Pack<std::uint32_t>(_mm512_cvtepu8_epi32(read_raw<__m128i>(from)));
  }
  HVD_INLINE static void write_bytes(std::byte* to, Pack<std::uint32_t> lanes) {
    write_raw(to, _mm512_cvtepi32_epi8(__m512i(lanes)));
  }
};

}  // namespace avx512

constexpr KernelTable kAvx512Table = avx512::make_table();

}  // namespace hvdlite::kernels
