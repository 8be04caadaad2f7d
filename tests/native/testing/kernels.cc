#include "testing/kernels.h"

#include <algorithm>

#include "c_api/c_api.h"
#include "collectives/tile_stores.h"
#include "kernels/codec.h"

namespace hvdlite::testing {

using engine::require;

namespace {

const kernels::ReduceKernels& find(int isa, int dtype, int op) {
  require(isa >= 0 && isa <= 2, "isa is 0 (scalar), 1 (avx2) or 2 (avx512)");
  require(dtype >= 0 && dtype < base::kNumDTypes, "unknown dtype");
  require(op >= 0 && op <= static_cast<int>(base::ReduceOp::kProduct), "unknown reduce op");
  return kernels::reduce_kernels(static_cast<base::DType>(dtype), static_cast<base::ReduceOp>(op),
                                 static_cast<kernels::Isa>(isa));
}

}  // namespace

void test_kernel(int which, int isa, int dtype, int op, void* out, const void* lhs, const void* rhs,
                 std::size_t n, double factor, std::int64_t divisor) {
  const kernels::ReduceKernels& kernels = find(isa, dtype, op);
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

void test_fold(int isa, int dtype, int op, const std::vector<void*>& out,
               const std::vector<const void*>& in, std::size_t n, double prescale, double postscale,
               std::int64_t divisor) {
  const kernels::ReduceKernels& kernels = find(isa, dtype, op);
  const auto given = [n](const void* place) { return n == 0 || place != nullptr; };
  require(!out.empty() && !in.empty(), "fold needs an output and an input");
  require(std::ranges::all_of(out, given), "an output is null");
  require(std::ranges::all_of(in, given), "an input is null");
  require(divisor >= 1, "divisor is at least 1");
  kernels.fold(out.data(), static_cast<int>(out.size()), in.data(), static_cast<int>(in.size()), n,
               prescale, postscale, divisor);
}

namespace {

base::Codec codec_of(int kind, int block) {
  require(kind > 0 && kind < base::kNumCodecKinds, "unknown codec");
  require(base::is_possible_block(block), "no block has so many elements");
  return {static_cast<base::CodecKind>(kind), base::Between::kHosts, block};
}

}  // namespace

void test_codec(int which, int isa, int kind, void* out, const void* in, std::size_t n, int block) {
  require(which >= 0 && which <= 2, "which is 0 (encode), 1 (decode) or 2 (decode_add)");
  require(isa >= 0 && isa <= 2, "isa is 0 (scalar), 1 (avx2) or 2 (avx512)");
  require(n == 0 || (out != nullptr && in != nullptr), "a buffer is null");
  const kernels::CodecKernels& kernels =
      kernels::codec_kernels(codec_of(kind, block).kind, static_cast<kernels::Isa>(isa));
  const auto kernel = which == 0   ? kernels.encode
                      : which == 1 ? kernels.decode
                                   : kernels.decode_add;
  kernel(out, in, n, static_cast<std::size_t>(block));
}

std::size_t encoded_bytes(int kind, std::size_t n, int block) {
  return kernels::encoded_bytes(codec_of(kind, block), n);
}

std::vector<bool> try_stores(const std::vector<double>& ordinary,
                             const std::vector<double>& streaming,
                             const std::vector<std::uint64_t>& kinds) {
  require(streaming.size() == ordinary.size() && kinds.size() == ordinary.size(),
          "both costs and a kind are needed for each tile");
  collectives::StoreTrials trials;
  std::uint64_t word = 0;
  std::vector<bool> streamed;
  for (std::size_t tile = 0; tile < ordinary.size(); ++tile) {
    streamed.push_back(collectives::StoreTrials::streams(word, tile));
    word = trials.handled(tile, streamed.back() ? streaming[tile] : ordinary[tile], kinds[tile]);
  }
  return streamed;
}

bool isa_supported(int isa) {
  return isa >= 0 && isa <= 2 && kernels::isa_supported(static_cast<kernels::Isa>(isa));
}

int accumulator_of(int dtype, int op) { return static_cast<int>(find(0, dtype, op).accumulator); }

}  // namespace hvdlite::testing
