// The codecs' kernels, compiled with -mavx2 -mf16c; only reached when the processor has both (dispatch.cc).
#include <immintrin.h>

#define HVD_KERNEL_NAMESPACE avx2
#define HVD_KERNEL_VECTOR_BYTES 32
#include "kernels/codec_impl.h"

namespace hvdlite::kernels {
namespace avx2 {

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

constexpr CodecTable kAvx2Codecs = avx2::make_codec_table();

}  // namespace hvdlite::kernels
