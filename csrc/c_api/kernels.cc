// The part of the C ABI that exposes single kernels, and how the stores of tiles are chosen, for tests and teaching.

#include "kernels/kernels.h"

#include <algorithm>

#include "c_api/c_api.h"
#include "collectives/tile_stores.h"
#include "hvdlite/hvdlite.h"

namespace hvdlite::engine {
namespace {

const kernels::ReduceKernels& find(int isa, int dtype, int op) {
  require(isa >= 0 && isa <= 2, "isa is 0 (scalar), 1 (avx2) or 2 (avx512)");
  require(dtype >= 0 && dtype < base::kNumDTypes, "unknown dtype");
  require(op >= 0 && op <= static_cast<int>(base::ReduceOp::kProduct), "unknown reduce op");
  return kernels::reduce_kernels(static_cast<base::DType>(dtype), static_cast<base::ReduceOp>(op),
                                 static_cast<kernels::Isa>(isa));
}

void run(const kernels::ReduceKernels& kernels, int which, void* out, const void* lhs,
         const void* rhs, size_t n, double factor, int64_t divisor) {
  require(which >= 0 && which <= 4,
          "which is 0 (load), 1 (accumulate), 2 (combine), 3 (store) or 4 (fill_identity)");
  require(n == 0 || out != nullptr, "out is null");
  require(n == 0 || which == 4 || lhs != nullptr, "lhs is null");
  require(n == 0 || which != 2 || rhs != nullptr, "rhs is null");
  require(divisor >= 1, "divisor is at least 1");
  switch (which) {
    case 0:
      return kernels.load(out, lhs, n, factor);
    case 1:
      return kernels.accumulate(out, lhs, n, factor);
    case 2:
      return kernels.combine(out, lhs, rhs, n);
    case 3:
      return kernels.store(out, lhs, n, factor, divisor);
    default:
      return kernels.fill_identity(out, n);
  }
}

void fold(const kernels::ReduceKernels& kernels, void* const* out, int num_out,
          const void* const* in, int num_in, size_t n, double prescale, double postscale,
          int64_t divisor) {
  const auto given = [n](const void* place) { return n == 0 || place != nullptr; };
  require(num_out >= 1 && num_in >= 1, "fold needs an output and an input");
  require(std::all_of(out, out + num_out, given), "an output is null");
  require(std::all_of(in, in + num_in, given), "an input is null");
  require(divisor >= 1, "divisor is at least 1");
  kernels.fold(out, num_out, in, num_in, n, prescale, postscale, divisor);
}

}  // namespace
}  // namespace hvdlite::engine

int hvdlite_test_kernel(int which, int isa, int dtype, int op, void* out, const void* lhs,
                        const void* rhs, size_t n, double factor, int64_t divisor) {
  return hvdlite::engine::guarded([&] {
    hvdlite::engine::run(hvdlite::engine::find(isa, dtype, op), which, out, lhs, rhs, n, factor,
                         divisor);
  });
}

int hvdlite_test_fold(int isa, int dtype, int op, void* const* out, int num_out,
                      const void* const* in, int num_in, size_t n, double prescale,
                      double postscale, int64_t divisor) {
  return hvdlite::engine::guarded([&] {
    hvdlite::engine::fold(hvdlite::engine::find(isa, dtype, op), out, num_out, in, num_in, n,
                          prescale, postscale, divisor);
  });
}

int hvdlite_try_stores(size_t n, const double* ordinary, const double* streaming,
                       const uint64_t* kinds, uint8_t* streamed) {
  return hvdlite::engine::guarded([&] {
    hvdlite::collectives::StoreTrials trials;
    std::uint64_t word = 0;
    for (size_t tile = 0; tile < n; ++tile) {
      const bool streams = hvdlite::collectives::StoreTrials::streams(word, tile);
      streamed[tile] = streams ? 1 : 0;
      word = trials.handled(tile, streams ? streaming[tile] : ordinary[tile], kinds[tile]);
    }
  });
}

int hvdlite_isa_supported(int isa) {
  return isa >= 0 && isa <= 2 &&
                 hvdlite::kernels::isa_supported(static_cast<hvdlite::kernels::Isa>(isa))
             ? 1
             : 0;
}

int hvdlite_accumulator_of(int dtype, int op, int* out) {
  return hvdlite::engine::guarded(
      [&] { *out = static_cast<int>(hvdlite::engine::find(0, dtype, op).accumulator); });
}
