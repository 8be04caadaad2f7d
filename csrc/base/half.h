// 16-bit floats as storage: float16 (IEEE binary16) and bfloat16, converted to and from float32 in integer arithmetic. Rounding
// is to nearest, ties to even; overflow gives inf; subnormals are exact. A NaN stays a NaN with the same sign and the top bits
// of its payload, and becomes quiet. The F16C instructions do the same, so software and hardware agree bit for bit.
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstdint>

namespace hvdlite::base {

struct Float16 {
  std::uint16_t bits;
};

struct BFloat16 {
  std::uint16_t bits;
};

// always_inline, because files that are compiled for wider instruction sets include this header. Otherwise the linker could
// keep an out-of-line copy from such a file for the whole program.
[[gnu::always_inline]] constexpr float to_float(Float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = value.bits & 0x3ffu;
  std::uint32_t magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u);
  } else if (exponent != 0) {
    magnitude = (exponent + 112) << 23 | mantissa << 13;
  } else {  // subnormal: a multiple of 2^-24, a normal number in float32
    magnitude = __builtin_bit_cast(std::uint32_t, static_cast<float>(mantissa) * 0x1p-24f);
  }
  return __builtin_bit_cast(float, sign | magnitude);
}

[[gnu::always_inline]] constexpr float to_float(BFloat16 value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value.bits) << 16);
}

[[gnu::always_inline]] constexpr Float16 to_float16(float value) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t result = 0;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520, halfway to the next power: the tie goes to inf
    result = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14: normal; a carry raises the exponent
    result = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  } else if (magnitude >= 0x33000000u) {  // 2^-25: rounds to a multiple of 2^-24
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t shift = 126 - (magnitude >> 23);  // 14 ... 24
    const std::uint32_t odd = mantissa >> shift & 1u;
    result = (mantissa + (1u << (shift - 1)) - 1 + odd) >> shift;
  }
  return Float16{static_cast<std::uint16_t>(sign | result)};
}

[[gnu::always_inline]] constexpr BFloat16 to_bfloat16(float value) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return BFloat16{static_cast<std::uint16_t>((is_nan ? bits | 0x400000u : rounded) >> 16)};
}

}  // namespace hvdlite::base
