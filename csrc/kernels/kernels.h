// Element-wise reduction kernels: scalar reference, AVX2 and AVX-512, chosen at run time.
// Every instruction set gives bit-identical results (no FMA contraction, one order of additions), so ranks with
// different processors agree. A reduction has an element type T and an accumulator type A: 16-bit floats accumulate in
// float32, integer Averages in 64 bits, all others in T itself; rounding to T happens once, in `store`.
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: Error(Unsupported) from the look-ups only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace hvdlite::kernels {

enum class Isa : std::uint8_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

// Pointers need only the alignment of their element type (or none on x86); n counts elements and may be 0.
struct ReduceKernels {
  // acc[i] = A(in[i]) * prescale. Integers with prescale != 1 are scaled in double and truncated toward zero.
  void (*load)(void* acc, const void* in, std::size_t n, double prescale);
  // acc[i] = acc[i] op (A(in[i]) * prescale): the fused cast, prescale and reduction.
  void (*accumulate)(void* acc, const void* in, std::size_t n, double prescale);
  // out[i] = lhs[i] op rhs[i], all of type A. out may be lhs or rhs.
  void (*combine)(void* out, const void* lhs, const void* rhs, std::size_t n);
  // out[i] = T(acc[i] * postscale / divisor), rounded once. out may be acc when T is A. Floats multiply by
  // postscale/divisor; integers with postscale 1 divide exactly (truncated toward zero), otherwise in double.
  void (*store)(void* out, const void* acc, std::size_t n, double postscale, std::int64_t divisor);
  // acc[i] = the neutral element of op in A (what an absent or joined rank contributes).
  void (*fill_identity)(void* acc, std::size_t n);
  base::DType accumulator;
};

// The accumulator type A for elements of `dtype` under `op`.
base::DType accumulator_of(base::DType dtype, base::ReduceOp op);

// The kernels for a pair; Adasum and Average of bool are Error(Unsupported), naming both.
const ReduceKernels& reduce_kernels(base::DType dtype, base::ReduceOp op, Isa isa);

bool isa_supported(Isa isa);  // does this processor (and this build) run it
Isa best_isa();               // the widest supported one
const char* name_of(Isa isa);

}  // namespace hvdlite::kernels
