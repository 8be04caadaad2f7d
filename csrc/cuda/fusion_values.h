// The numbers that the fusion kernels move: how a number of each type is read, computed with and written, and whether it is
// finite.
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: nothing.
//
// Rounding is to nearest, ties to even, once. If one of the two types is float64, floats are computed in float64, otherwise in
// float32. On a GPU a NaN that is converted or scaled becomes the GPU's own NaN; on the host it keeps its sign and the top of
// its payload.
#pragma once

#include "cuda/fusion_arguments.h"
#if defined(HVDLITE_HOST_KERNELS)
#include "base/half.h"
#endif

#if defined(__CUDACC__)
#define HVD_DEVICE __device__ __forceinline__
#define HVD_UNROLL _Pragma("unroll")
#else
#define HVD_DEVICE inline
#define HVD_UNROLL _Pragma("GCC unroll 16")
#endif

namespace hvdlite_kernels {

// --- bits ----------------------------------------------------------------------------------------

#if defined(HVDLITE_HOST_KERNELS)
HVD_DEVICE U32 bits_of(float value) { return __builtin_bit_cast(U32, value); }
HVD_DEVICE float float_of(U32 bits) { return __builtin_bit_cast(float, bits); }
HVD_DEVICE U64 bits_of(double value) { return __builtin_bit_cast(U64, value); }
HVD_DEVICE double double_of(U64 bits) { return __builtin_bit_cast(double, bits); }
#else
HVD_DEVICE U32 bits_of(float value) { return __float_as_uint(value); }
HVD_DEVICE float float_of(U32 bits) { return __uint_as_float(bits); }
HVD_DEVICE U64 bits_of(double value) { return (U64)__double_as_longlong(value); }
HVD_DEVICE double double_of(U64 bits) { return __longlong_as_double((I64)bits); }
#endif

// 32 of the 64 bits in `high` and `low`, from bit number `bits` on; `bits` is less than 32.
HVD_DEVICE U32 funnel(U32 low, U32 high, U32 bits) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(low, high, bits);
#else
  return static_cast<U32>((static_cast<U64>(high) << 32 | low) >> bits);
#endif
}

// Rounds to odd: a value between two floats becomes the one with an odd last bit. If the result is rounded again, to at most 22
// bits, the final result is the same as if `value` had been rounded only once, ties included. Source: Boldo and Melquiond,
// Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd (IEEE Transactions on Computers 57,
// 2008).
HVD_DEVICE float round_to_odd(double value) {
  U32 bits = bits_of(static_cast<float>(value));
  const double back = static_cast<double>(float_of(bits));
  if (back == value || value != value) return float_of(bits);
  const double magnitude = value < 0 ? -value : value;
  if ((back < 0 ? -back : back) > magnitude) --bits;  // toward zero
  return float_of(bits | 1u);
}

// --- 16 bits -------------------------------------------------------------------------------------

HVD_DEVICE float from_float16(U16 bits) {
#if defined(HVDLITE_HOST_KERNELS)
  return hvdlite::base::to_float(hvdlite::base::Float16{bits});
#else
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#endif
}

HVD_DEVICE U16 to_float16(float value) {
#if defined(HVDLITE_HOST_KERNELS)
  return hvdlite::base::to_float16(value).bits;
#else
  U16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#endif
}

HVD_DEVICE U16 to_bfloat16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  U16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const U32 bits = bits_of(value);
  const U32 rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return static_cast<U16>((value != value ? bits | 0x400000u : rounded) >> 16);
#endif
}

// --- formats: a number in memory and as float or double ----------------------------------------------

struct float16 {
  static constexpr U32 kBytes = 2;
  HVD_DEVICE static float read(U64 bits) { return from_float16(static_cast<U16>(bits)); }
  HVD_DEVICE static U64 write(float value) { return to_float16(value); }
  HVD_DEVICE static U64 write(double value) { return to_float16(round_to_odd(value)); }
  HVD_DEVICE static U32 write_two(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    U32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return to_float16(low) | static_cast<U32>(to_float16(high)) << 16;
#endif
  }
  HVD_DEVICE static bool nonfinite(U64 bits) { return (bits & 0x7c00u) == 0x7c00u; }
};

struct bfloat16 {
  static constexpr U32 kBytes = 2;
  HVD_DEVICE static float read(U64 bits) { return float_of(static_cast<U32>(bits) << 16); }
  HVD_DEVICE static U64 write(float value) { return to_bfloat16(value); }
  HVD_DEVICE static U64 write(double value) { return to_bfloat16(round_to_odd(value)); }
  HVD_DEVICE static U32 write_two(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    U32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return to_bfloat16(low) | static_cast<U32>(to_bfloat16(high)) << 16;
#endif
  }
  HVD_DEVICE static bool nonfinite(U64 bits) { return (bits & 0x7f80u) == 0x7f80u; }
};

struct float32 {
  static constexpr U32 kBytes = 4;
  HVD_DEVICE static float read(U64 bits) { return float_of(static_cast<U32>(bits)); }
  HVD_DEVICE static U64 write(float value) { return bits_of(value); }
  HVD_DEVICE static U64 write(double value) { return bits_of(static_cast<float>(value)); }
  HVD_DEVICE static bool nonfinite(U64 bits) { return (bits & 0x7f800000u) == 0x7f800000u; }
};

struct float64 {
  static constexpr U32 kBytes = 8;
  HVD_DEVICE static double read(U64 bits) { return double_of(bits); }
  HVD_DEVICE static U64 write(double value) { return bits_of(value); }
  HVD_DEVICE static bool nonfinite(U64 bits) { return (bits >> 32 & 0x7ff00000u) == 0x7ff00000u; }
};

// The type in which a kernel from one format to the other computes.
template <class From, class To>
struct Wide {
  using Type = float;
};
template <class From>
struct Wide<From, float64> {
  using Type = double;
};
template <class To>
struct Wide<float64, To> {
  using Type = double;
};
template <>
struct Wide<float64, float64> {
  using Type = double;
};

// --- integers ------------------------------------------------------------------------------------

// The codes of hvdlite::base::DType.
enum : U8 { kUInt8 = 0, kInt8, kUInt16, kInt16, kUInt32, kInt32, kUInt64, kInt64, kBool = 12 };

HVD_DEVICE U32 bytes_of_integer(U32 dtype) { return dtype == kBool ? 1u : 1u << dtype / 2; }

// Returns the number as a signed 64-bit number. For uint64 this has the bits of the number.
HVD_DEVICE I64 read_integer(const U8* at, U32 dtype) {
  switch (dtype) {
    case kUInt8:
      return *at;
    case kInt8:
      return static_cast<signed char>(*at);
    case kUInt16:
      return *reinterpret_cast<const U16*>(at);
    case kInt16:
      return *reinterpret_cast<const short*>(at);
    case kUInt32:
      return *reinterpret_cast<const U32*>(at);
    case kInt32:
      return *reinterpret_cast<const int*>(at);
    case kBool:
      return *at != 0;
    default:
      return *reinterpret_cast<const I64*>(at);
  }
}

HVD_DEVICE void write_integer(U8* at, U32 dtype, I64 value) {
  switch (bytes_of_integer(dtype)) {
    case 1:
      *at = static_cast<U8>(dtype == kBool ? value != 0 : value);
      break;
    case 2:
      *reinterpret_cast<U16*>(at) = static_cast<U16>(value);
      break;
    case 4:
      *reinterpret_cast<U32*>(at) = static_cast<U32>(value);
      break;
    default:
      *reinterpret_cast<I64*>(at) = value;
  }
}

constexpr I64 kMostInt64 = 0x7fffffffffffffffLL;

// The greatest and the least number of a type that has less than 64 bits.
HVD_DEVICE I64 highest_of(U32 dtype) {
  const U32 bits = 8 * bytes_of_integer(dtype);
  return (1LL << (dtype % 2 != 0 ? bits - 1 : bits)) - 1;
}
HVD_DEVICE I64 lowest_of(U32 dtype) {
  return dtype % 2 != 0 ? -(1LL << (8 * bytes_of_integer(dtype) - 1)) : 0;
}

// The number of the type `to` that is nearest to `value`; for bool, `value` itself. If `from` is uint64, the bits of `value`
// are an unsigned number.
HVD_DEVICE I64 clamp_integer(I64 value, U32 from, U32 to) {
  if (from == to || to == kBool) return value;
  const bool large = from == kUInt64 && value < 0;  // 2^63 or more
  if (to == kUInt64) return value < 0 && !large ? 0 : value;
  if (to == kInt64) return large ? kMostInt64 : value;
  if (large || value > highest_of(to)) return highest_of(to);
  return value < lowest_of(to) ? lowest_of(to) : value;
}

// Truncates toward zero. A value out of the range of `to` gives the nearest limit, NaN gives 0.
HVD_DEVICE I64 saturate(double value, U32 to) {
  if (value != value) return 0;
  if (to == kUInt64) {
    if (value >= 0x1p64) return -1;
    return value <= 0 ? 0 : static_cast<I64>(static_cast<U64>(value));
  }
  if (to == kInt64) {
    if (value >= 0x1p63) return kMostInt64;
    return value <= -0x1p63 ? -kMostInt64 - 1 : static_cast<I64>(value);
  }
  if (value >= static_cast<double>(highest_of(to))) return highest_of(to);
  return value <= static_cast<double>(lowest_of(to)) ? lowest_of(to) : static_cast<I64>(value);
}

HVD_DEVICE I64 convert_integer(I64 value, const Arguments& arguments) {
  const U32 from = arguments.from;
  const U32 to = arguments.to;
  const I64 divisor = arguments.divisor;
  if (arguments.factor == 1.0) {
    if (divisor != 1) {
      value = from == kUInt64
                  ? static_cast<I64>(static_cast<U64>(value) / static_cast<U64>(divisor))
                  : value / divisor;
    }
    return clamp_integer(value, from, to);
  }
  const double wide =
      from == kUInt64 ? static_cast<double>(static_cast<U64>(value)) : static_cast<double>(value);
  return saturate(wide * arguments.factor / static_cast<double>(divisor), to);
}

}  // namespace hvdlite_kernels
