// The codecs' kernels, compiled with -mavx512{f,bw,dq,vl} -mf16c; only reached when the processor has them all (dispatch.cc).
// The warning: see reduce_avx512.cc.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#define HVD_KERNEL_NAMESPACE avx512
#define HVD_KERNEL_VECTOR_BYTES 64
#include "kernels/codec_impl.h"

namespace hvdlite::kernels {
namespace avx512 {

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

constexpr CodecTable kAvx512Codecs = avx512::make_codec_table();

}  // namespace hvdlite::kernels
