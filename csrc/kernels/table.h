// The kernels of one instruction set: what kernels_*.cc defines and dispatch.cc looks up.
// Thread: constants, any. Owns: nothing. Blocks: no. Throws: nothing. Private to kernels/.
#pragma once

#include "base/codec.h"
#include "base/types.h"
#include "kernels/codec.h"
#include "kernels/kernels.h"

namespace hvdlite::kernels {

// Plain arrays: the files compiled for wider instruction sets must not emit code of std:: templates (reduce_impl.h).
struct KernelTable {
  // By dtype and op; null functions where a pair has no kernels.
  ReduceKernels reduce[base::kNumDTypes][base::kNumReduceOps];
  CodecKernels codecs[base::kNumCodecKinds];  // null functions for kNone
};

extern const KernelTable kScalarTable;
extern const KernelTable kAvx2Table;    // x86-64 only
extern const KernelTable kAvx512Table;  // x86-64 only

}  // namespace hvdlite::kernels
