// Kernels of the codecs: float32 to blocks of small codes and back, for each instruction set.
//
// An encoded run of n elements consists of blocks one after the other. A block of k elements (the last block may be shorter) is
// a float32 scale and k codes; element i decodes to the scale times the value of code i:
//
//   int8   a byte with an integer from -127 to 127; scale = largest magnitude of the block / 127
//   int4   four bits with an integer from -7 to 7, scale = largest / 7; of h = ceil(k / 2) bytes, byte i holds element i in its
//          lower half and element h + i in its upper half (0 if there is none)
//   fp8    a byte with an E4M3 float (1 sign bit, 4 of exponent, 3 of mantissa, subnormals); scale = largest / 448
//
// The code of an element x is that of x * (m / largest), m = 127, 7 or 448, rounded to nearest, ties to even. If a block holds
// an inf or a nan, its scale is nan and its codes are 0, so all its elements decode to nan. If the largest element would decode
// to inf, the scale is the next smaller float. If no magnitude of a block reaches 2^-100, all its elements decode to 0. So no
// result depends on how the calling thread treats subnormals, and all instruction sets give the same bits. A run of zero bytes
// decodes to zeros.
//
// Sources: blocks with a scale, Dettmers, 8-bit approximations for parallelism in deep learning (2016); E4M3, Micikevicius et
// al., FP8 formats for deep learning (2022), in its variant without infinities.
//
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: Error(Unsupported) from codec_kernels() only.
#pragma once

#include <cstddef>

#include "base/codec.h"
#include "kernels/kernels.h"

namespace hvdlite::kernels {

// Floats and encoded runs may have any alignment and do not overlap; n counts elements and may be 0.
struct CodecKernels {
  // out = the encoded run of in.
  void (*encode)(void* out, const void* in, std::size_t n, std::size_t block);
  // out[i] = decoded in[i].
  void (*decode)(void* out, const void* in, std::size_t n, std::size_t block);
  // acc[i] = acc[i] + decoded in[i]; if the sum is nan, it is the nan 0x7fc00000.
  void (*decode_add)(void* acc, const void* in, std::size_t n, std::size_t block);
};

// kind is not kNone. Throws Error(Unsupported) for an instruction set that does not run here.
const CodecKernels& codec_kernels(base::CodecKind kind, Isa isa);

// Bytes of an encoded run of n elements.
std::size_t encoded_bytes(const base::Codec& codec, std::size_t n);

}  // namespace hvdlite::kernels
