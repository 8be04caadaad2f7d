// The part of the C ABI that exposes single kernels, for tests and teaching.

#include "engine/c_api.h"
#include "hvdlite/hvdlite.h"
#include "kernels/kernels.h"

namespace hvdlite::engine {
namespace {

const kernels::ReduceKernels& find(int isa, int dtype, int op) {
  require(isa >= 0 && isa <= 2, "isa is 0 (scalar), 1 (avx2) or 2 (avx512)");
  require(dtype >= 0 && dtype < base::kNumDTypes, "unknown dtype");
  require(op >= 0 && op <= static_cast<int>(base::ReduceOp::kProduct), "unknown reduce op");
  return kernels::reduce_kernels(static_cast<base::DType>(dtype), static_cast<base::ReduceOp>(op),
                                 static_cast<kernels::Isa>(isa));
}

}  // namespace
}  // namespace hvdlite::engine

int hvdlite_test_kernel(int which, int isa, int dtype, int op, void* out, const void* lhs, const void* rhs, size_t n,
                        double factor, int64_t divisor) {
  return hvdlite::engine::guarded([&] {
    const hvdlite::kernels::ReduceKernels& kernels = hvdlite::engine::find(isa, dtype, op);
    switch (which) {
      case 0:
        return kernels.load(out, lhs, n, factor);
      case 1:
        return kernels.accumulate(out, lhs, n, factor);
      case 2:
        return kernels.combine(out, lhs, rhs, n);
      case 3:
        return kernels.store(out, lhs, n, factor, divisor);
      case 4:
        return kernels.fill_identity(out, n);
      default:
        hvdlite::engine::require(false, "which is 0 to 4");
    }
  });
}

int hvdlite_isa_supported(int isa) {
  return isa >= 0 && isa <= 2 && hvdlite::kernels::isa_supported(static_cast<hvdlite::kernels::Isa>(isa)) ? 1 : 0;
}

int hvdlite_accumulator_of(int dtype, int op, int* out) {
  return hvdlite::engine::guarded(
      [&] { *out = static_cast<int>(hvdlite::engine::find(0, dtype, op).accumulator); });
}
