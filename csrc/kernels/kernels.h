// Element-wise reduction kernels: scalar reference, AVX2 and AVX-512, chosen at run time. A
// reduction has an element type T and an accumulator type A: 16-bit floats accumulate in float32,
// integer Averages in 64 bits, bool in bytes of 0 and 1, all others in T itself; rounding to T
// happens once, in `store`. A complex number is a pair of floats, for Sum and Average.
//
// Every instruction set gives bit-identical results (one order of operations per element, no FMA
// contraction), and op(a, b) has the bits of op(b, a), NaNs included: ranks with different
// processors agree. Sum and Product give the one quiet NaN 0x7fc00000 (0x7ff8...) whenever the
// result is NaN. Min and Max give NaN if either operand is one, with both operands' bits or-ed (of
// Max: signs and-ed); to them -0 is less than +0. load, store and scaling keep a NaN's sign and
// leading payload. If 0 is scaled by inf (or inf by 0), or a factor is NaN, the processor decides
// sign and payload of the result. Rounding and subnormals follow the calling thread's mode; in a pass of the engine it is the
// standard one (float_mode.h). Integer Sum and Product wrap modulo 2^n.
//
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: Error(Unsupported) from reduce_kernels() and accumulator_of() only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/types.h"

namespace hvdlite::kernels {

enum class Isa : std::uint8_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

// Pointers may have any alignment; n counts elements and may be 0. Buffers are the same where a
// line says so, else they do not overlap. Factors of float32 and 16-bit floats are rounded to
// float32 once; a factor of 1 costs nothing. Scaled integers are computed in double (64-bit values
// beyond 2^53 lose their low bits), truncated toward zero and saturated, NaN gives 0. bool ignores
// factors and divisor: check_request refuses factors other than 1.
struct ReduceKernels {
  // acc[i] = A(in[i]) * prescale. acc may be in when T is A.
  void (*load)(void* acc, const void* in, std::size_t n, double prescale);
  // acc[i] = acc[i] op (A(in[i]) * prescale): the fused cast, prescale and reduction. acc may be in
  // when T is A.
  void (*accumulate)(void* acc, const void* in, std::size_t n, double prescale);
  // out[i] = lhs[i] op rhs[i], all of type A. out may be lhs or rhs.
  void (*combine)(void* out, const void* lhs, const void* rhs, std::size_t n);
  // out[i] = T(acc[i] * postscale / divisor), rounded once; divisor >= 1. out may be acc when T is
  // A (a no-op if nothing is scaled). Floats multiply by the quotient postscale/divisor; integers
  // with postscale 1 divide exactly, truncated toward zero, otherwise they are scaled as (acc *
  // postscale) / divisor. An integer that T cannot hold saturates; a float becomes inf.
  void (*store)(void* out, const void* acc, std::size_t n, double postscale, std::int64_t divisor);
  // out[i] = T((in_0[i] * prescale op in_1[i] * prescale op ...) * postscale / divisor) for each of
  // num_out outputs, the inputs taken in this order: load, accumulate and store in one pass, with
  // exactly their bits. num_in and num_out >= 1. An output may be one of the inputs; outputs do not
  // overlap one another.
  void (*fold)(void* const* out, int num_out, const void* const* in, int num_in, std::size_t n,
               double prescale, double postscale, std::int64_t divisor);
  // acc[i] = the neutral element of op in A (what an absent or joined rank contributes). For a Sum
  // of floats it is -0: +0 would turn a -0 of the others into +0.
  void (*fill_identity)(void* acc, std::size_t n);
  base::DType accumulator;
};

// The accumulator type A for elements of `dtype` under `op`.
base::DType accumulator_of(base::DType dtype, base::ReduceOp op);

// Why a pair has no kernels, and what to use instead; "" if it has kernels. These have none: Adasum (it combines whole tensors:
// allreduce_adasum), Average of bool, and Min, Max and Product of complex numbers.
std::string why_unsupported(base::DType dtype, base::ReduceOp op);

// The kernels for a pair. Throws Error(Unsupported) if the pair has none, or if the instruction set does not run here.
const ReduceKernels& reduce_kernels(base::DType dtype, base::ReduceOp op, Isa isa);

bool isa_supported(Isa isa);  // does this processor (and this build) run it
Isa best_isa();               // the widest supported one
const char* name_of(Isa isa);

}  // namespace hvdlite::kernels
