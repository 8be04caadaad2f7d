// Single kernels, and how the stores of tiles are chosen.
// Thread: any. Owns: nothing. Blocks: no. Throws: Error(InvalidArgument), and what kernels.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvdlite::testing {

// which: 0 load 1 accumulate 2 combine 3 store 4 fill_identity; isa 0 scalar 1 avx2 2 avx512. Buffers as in kernels/kernels.h.
void test_kernel(int which, int isa, int dtype, int op, void* out, const void* lhs, const void* rhs,
                 std::size_t n, double factor, std::int64_t divisor);
void test_fold(int isa, int dtype, int op, const std::vector<void*>& out,
               const std::vector<const void*>& in, std::size_t n, double prescale, double postscale,
               std::int64_t divisor);
// which: 0 encode 1 decode 2 decode_add; kind: a number of base::CodecKind. Buffers as in kernels/codec.h.
void test_codec(int which, int isa, int kind, void* out, const void* in, std::size_t n, int block);
std::size_t encoded_bytes(int kind, std::size_t n, int block);
// Which tiles of one class would be written past the caches where handling each costs so many nanoseconds a byte written with
// ordinary and with streaming stores; kinds: equal for tiles that can be compared (collectives/tile_stores.h).
std::vector<bool> try_stores(const std::vector<double>& ordinary,
                             const std::vector<double>& streaming,
                             const std::vector<std::uint64_t>& kinds);
bool isa_supported(int isa);
int accumulator_of(int dtype, int op);

}  // namespace hvdlite::testing
