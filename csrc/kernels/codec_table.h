// The codecs' kernels of one instruction set: what codec_*.cc defines and dispatch.cc looks up.
// Thread: constants, any. Owns: nothing. Blocks: no. Throws: nothing. Private to kernels/.
#pragma once

#include "base/codec.h"
#include "kernels/codec.h"

namespace hvdlite::kernels {

// A plain array, for the reason that reduce_table.h gives.
struct CodecTable {
  CodecKernels of[base::kNumCodecKinds];  // null functions for kNone
};

extern const CodecTable kScalarCodecs;
extern const CodecTable kAvx2Codecs;    // x86-64 only
extern const CodecTable kAvx512Codecs;  // x86-64 only

}  // namespace hvdlite::kernels
