// The reference kernels of the codecs: one element at a time, baseline instructions only.
#define HVD_KERNEL_NAMESPACE scalar
#define HVD_KERNEL_VECTOR_BYTES 0
#include "kernels/codec_impl.h"

namespace hvdlite::kernels {

constexpr CodecTable kScalarCodecs = scalar::make_codec_table();

}  // namespace hvdlite::kernels
