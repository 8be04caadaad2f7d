// The kernels of one instruction set, indexed by dtype and op: what reduce_*.cc defines and
// dispatch.cc looks up.
// Thread: constants, any. Owns: nothing. Blocks: no. Throws: nothing. Private to kernels/.
#pragma once

#include "base/types.h"
#include "kernels/kernels.h"

namespace hvdlite::kernels {

inline constexpr int kNumReduceOps = 6;

// A plain array: the files compiled for wider instruction sets must not emit code of std::
// templates (reduce_impl.h).
struct KernelTable {
  ReduceKernels at[base::kNumDTypes][kNumReduceOps];  // null functions where a pair has no kernels
};

extern const KernelTable kScalarTable;
extern const KernelTable kAvx2Table;    // x86-64 only
extern const KernelTable kAvx512Table;  // x86-64 only

}  // namespace hvdlite::kernels
