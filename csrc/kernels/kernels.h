// Element-wise reduction kernels for three instruction sets: the scalar reference, AVX2 and AVX-512. One of them is chosen at
// run time. A reduction has an element type T and an accumulator type A. A is float32 for 16-bit floats, a type of 64 bits for
// Averages of integers, a byte of 0 or 1 for bool, and T itself in all other cases. Results are rounded to T once, in `store`.
// A complex number is a pair of floats, and has kernels for Sum and Average only.
//
// Every instruction set gives bit-identical results (one order of operations per element, no FMA contraction), and op(a, b) has
// the bits of op(b, a), NaNs included. So ranks with different processors get the same results. If the result of Sum or Product
// is NaN, it is always the quiet NaN 0x7fc00000 (0x7ff8... for float64). If an operand of Min or Max is NaN, the result is a
// NaN with the bitwise "or" of both operands' bits (but for Max with the "and" of the signs). For Min and Max -0 is less than
// +0. load, store and scaling keep a NaN's sign and the top of its payload. If 0 is scaled by inf (or inf by 0), or a factor is
// NaN, the processor decides sign and payload of the result. Rounding and subnormals follow the mode of the calling thread; in
// a pass of the engine this is the standard mode (float_mode.h). Integer Sum and Product wrap modulo 2^n.
//
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: Error(Unsupported) from reduce_kernels() and accumulator_of() only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/types.h"

namespace hvdlite::kernels {

enum class Isa : std::uint8_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

// Pointers may have any alignment; n counts elements and may be 0. Two buffers may be the same one if a comment below allows
// it; otherwise they do not overlap. Factors of float32 and 16-bit floats are rounded to float32 once; a factor of 1 costs
// nothing. Scaled integers are computed in double (64-bit values beyond 2^53 lose their low bits), truncated toward zero and
// saturated; NaN gives 0. bool ignores factors and divisor: check_request refuses factors other than 1.
struct ReduceKernels {
  // acc[i] = A(in[i]) * prescale. If T is A, `acc` and `in` may be the same.
  void (*load)(void* acc, const void* in, std::size_t n, double prescale);
  // acc[i] = acc[i] op (A(in[i]) * prescale): the fused cast, prescale and reduction. If T is A, `acc` and `in` may be the
  // same.
  void (*accumulate)(void* acc, const void* in, std::size_t n, double prescale);
  // out[i] = lhs[i] op rhs[i], all of type A. `out` may be the same as `lhs` or `rhs`.
  void (*combine)(void* out, const void* lhs, const void* rhs, std::size_t n);
  // out[i] = T(acc[i] * postscale / divisor), rounded once; divisor >= 1. If T is A, `out` and `acc` may be the same (a no-op
  // if nothing is scaled). Floats are multiplied by the quotient postscale/divisor. If postscale is 1, integers are divided
  // exactly and truncated toward zero; otherwise they are scaled as (acc * postscale) / divisor. An integer that T cannot hold
  // saturates; a float that T cannot hold becomes inf.
  void (*store)(void* out, const void* acc, std::size_t n, double postscale, std::int64_t divisor);
  // out[i] = T((in_0[i] * prescale op in_1[i] * prescale op ...) * postscale / divisor), written to each of num_out outputs.
  // The inputs are taken in this order. This is load, accumulate and store in one pass, and gives exactly the same bits. num_in
  // and num_out >= 1. An output may be one of the inputs; outputs do not overlap one another.
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
