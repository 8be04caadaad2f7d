// The loops of the codecs, written once. Included by kernels_impl.h only; the rules of reduce_impl.h hold here, too.
#include <cstddef>
#include <cstdint>

#include "kernels/reduce_units.h"
#include "kernels/table.h"

namespace hvdlite::kernels::HVD_KERNEL_NAMESPACE {

// The same bits as another type, for numbers and for packs.
template <class To, class From>
HVD_INLINE To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  __builtin_memcpy(&result, &value, sizeof(To));
  return result;
}

// The types for one unit (reduce_units.h): floats, their bits, and the bits as signed numbers.
template <class U>
using Float = typename U::template Value<float>;
template <class U>
using Bits = typename U::template Value<std::uint32_t>;
template <class U>
using Signed = typename U::template Value<std::int32_t>;

template <class U>
HVD_INLINE Float<U> to_floats(Signed<U> value) {
  if constexpr (std::is_same_v<U, Packed>) {
    return __builtin_convertvector(value, Float<U>);
  } else {
    return static_cast<float>(value);
  }
}

// Each instruction set adds Native<uint32_t>: read_bytes reads one byte for each 32-bit lane, write_bytes writes the low byte
// of each lane.
template <class U, class A = std::uint32_t>
HVD_INLINE Bits<U> read_codes(const std::byte* from) {
  if constexpr (std::is_same_v<U, Packed>) {
    return Native<A>::read_bytes(from);
  } else {
    return static_cast<A>(*from);
  }
}

template <class U, class A = std::uint32_t>
HVD_INLINE void write_codes(std::byte* to, Bits<U> codes) {
  if constexpr (std::is_same_v<U, Packed>) {
    Native<A>::write_bytes(to, codes);
  } else {
    *to = static_cast<std::byte>(codes);
  }
}

// --- formats ---------------------------------------------------------------------------------------------------------------
//
// kLargest: the magnitude to which the largest element of a block is scaled. code(): the code of a scaled element, in the low
// bits; the bits above it are arbitrary. value(): the scaled element for which the code in the low bits stands; the bits above
// the code may be arbitrary.

// The low 22 bits of x + kToInteger are the integer nearest to x, ties to even, because floats of that size are whole numbers.
inline constexpr float kToInteger = 12582912.0F;  // 1.5 * 2^23

struct Int8 {
  static constexpr float kLargest = 127.0F;
  static constexpr bool kTwoInByte = false;

  template <class U>
  HVD_INLINE static Bits<U> code(Float<U> scaled) {
    return bits_as<Bits<U>>(scaled + kToInteger);
  }
  template <class U>
  HVD_INLINE static Float<U> value(Bits<U> code) {
    return to_floats<U>(bits_as<Signed<U>>(code << 24) >> 24);
  }
};

struct Int4 {
  static constexpr float kLargest = 7.0F;
  static constexpr bool kTwoInByte = true;

  template <class U>
  HVD_INLINE static Bits<U> code(Float<U> scaled) {
    return bits_as<Bits<U>>(scaled + kToInteger);
  }
  template <class U>
  HVD_INLINE static Float<U> value(Bits<U> code) {
    return to_floats<U>(bits_as<Signed<U>>(code << 28) >> 28);
  }
};

struct Fp8 {
  static constexpr float kLargest = 448.0F;
  static constexpr bool kTwoInByte = false;
  static constexpr std::uint32_t kRebias = 127 - 7;  // between the exponents of float32 and E4M3
  static constexpr std::uint32_t kLeastNormal = 121U << 23;  // 2^-6
  static constexpr float kToSubnormal = 16384.0F;  // its unit is that of E4M3's subnormals, 2^-9

  template <class U>
  HVD_INLINE static Bits<U> code(Float<U> scaled) {
    const Bits<U> bits = bits_as<Bits<U>>(scaled);
    const Bits<U> magnitude = bits & 0x7fffffffU;
    const Bits<U> normal = ((magnitude + 0x7ffffU + (magnitude >> 20 & 1U)) >> 20) - (kRebias << 3);
    const Bits<U> subnormal = bits_as<Bits<U>>(bits_as<Float<U>>(magnitude) + kToSubnormal) -
                              __builtin_bit_cast(std::uint32_t, kToSubnormal);
    const auto is_small = bits_as<Signed<U>>(magnitude) < static_cast<std::int32_t>(kLeastNormal);
    return (is_small ? subnormal : normal) | (bits >> 24 & 0x80U);
  }
  template <class U>
  HVD_INLINE static Float<U> value(Bits<U> code) {
    const Bits<U> exponent_and_mantissa = (code & 0x7fU) << 20;
    const Bits<U> normal = exponent_and_mantissa + (kRebias << 23);
    // First makes a normal number, which has the implicit bit, and then subtracts the value of this bit. Arithmetic on float32
    // subnormals would depend on the thread's mode.
    const Float<U> with_bit = bits_as<Float<U>>(exponent_and_mantissa + kLeastNormal);
    const Bits<U> subnormal = bits_as<Bits<U>>(with_bit - __builtin_bit_cast(float, kLeastNormal));
    const auto is_small = bits_as<Signed<U>>(exponent_and_mantissa) < std::int32_t{8 << 20};
    return bits_as<Float<U>>((is_small ? subnormal : normal) | (code & 0x80U) << 24);
  }
};

// --- blocks ----------------------------------------------------------------------------------------------------------------

inline constexpr std::uint32_t kInfinity = 0x7f800000U;
inline constexpr std::uint32_t kLeast = 27U << 23;  // 2^-100
inline constexpr std::uint32_t kNan = 0x7fc00000U;
inline constexpr std::size_t kScaleBytes = sizeof(float);

template <class Format>
HVD_INLINE std::size_t code_bytes(std::size_t n) {
  return Format::kTwoInByte ? (n + 1) / 2 : n;
}

// The bits of the largest magnitude. Bits of floats without the sign, taken as integers, have the same order as the floats; the
// bits of inf and nan are the largest.
template <class A = std::int32_t>
HVD_INLINE std::uint32_t largest_magnitude(const void* in, std::size_t n) {
  constexpr std::size_t kStep = kVectorBytes == 0 ? 1 : kLanes<A>;
  std::int32_t result = 0;
  std::size_t i = 0;
  if constexpr (kVectorBytes != 0) {
    Pack<A> even{}, odd{};
    for (; n - i >= 2 * kStep; i += 2 * kStep) {
      const Pack<A> first = read_raw<Pack<A>>(at<float>(in, i)) & 0x7fffffff;
      const Pack<A> second = read_raw<Pack<A>>(at<float>(in, i + kStep)) & 0x7fffffff;
      even = first > even ? first : even;
      odd = second > odd ? second : odd;
    }
    even = odd > even ? odd : even;
    for (std::size_t lane = 0; lane < kStep; ++lane) {
      result = even[lane] > result ? even[lane] : result;
    }
  }
  for (; i < n; ++i) {
    const std::int32_t magnitude = read_raw<std::int32_t>(at<float>(in, i)) & 0x7fffffff;
    result = magnitude > result ? magnitude : result;
  }
  return static_cast<std::uint32_t>(result);
}

template <class Format>
HVD_INLINE float scale_of(float largest) {
  const float scale = largest / Format::kLargest;
  // Rounding can make the code of the largest element of a block decode to inf; then the next smaller scale is nearer.
  if (scale * Format::kLargest <= __FLT_MAX__) return scale;
  return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, scale) - 1U);
}

template <class Format>
HVD_INLINE void encode_block(std::byte* out, const void* in, std::size_t n) {
  const std::uint32_t bits = largest_magnitude(in, n);
  std::byte* const codes = out + kScaleBytes;
  if (bits >= kInfinity || bits < kLeast) {
    write_raw(out, bits < kLeast ? 0U : kNan);
    __builtin_memset(codes, 0, code_bytes<Format>(n));
    return;
  }
  const float largest = __builtin_bit_cast(float, bits);
  const float factor = Format::kLargest / largest;
  write_raw(out, scale_of<Format>(largest));
  const auto code_at = [=](auto unit, std::size_t i) HVD_INLINE_BODY {
    using U = decltype(unit);
    return Format::template code<U>(U::template read<float, float>(at<float>(in, i)) * factor);
  };
  if constexpr (Format::kTwoInByte) {
    const std::size_t half = code_bytes<Format>(n);
    for_each<float, float>(n - half, nullptr, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
      using U = decltype(unit);
      write_codes<U>(codes + i, (code_at(unit, i) & 0xfU) | code_at(unit, half + i) << 4);
    });
    if (n % 2 != 0) write_codes<Element>(codes + half - 1, code_at(Element{}, half - 1) & 0xfU);
  } else {
    for_each<float, float>(n, nullptr, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
      write_codes<decltype(unit)>(codes + i, code_at(unit, i));
    });
  }
}

// kAdds: adds the decoded elements to the content of out.
template <class Format, bool kAdds>
HVD_INLINE void decode_block(void* out, const std::byte* in, std::size_t n) {
  const float scale = read_raw<float>(in);
  const std::byte* const codes = in + kScaleBytes;
  const auto put = [=](auto unit, std::size_t i, auto code) HVD_INLINE_BODY {
    using U = decltype(unit);
    Float<U> value = Format::template value<U>(code) * scale;
    if constexpr (kAdds) value = U::template read<float, float>(at<float>(out, i)) + value;
    // One nan for all, as in Sum (reduce_ops.h).
    if constexpr (kAdds) value = value == value ? value : Float<U>{} + __builtin_nanf("");
    U::template write<float, float>(at<float>(out, i), value);
  };
  if constexpr (Format::kTwoInByte) {
    const std::size_t half = code_bytes<Format>(n);
    for_each<float, float>(n - half, nullptr, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
      const auto both = read_codes<decltype(unit)>(codes + i);
      put(unit, i, both);
      put(unit, half + i, both >> 4);
    });
    if (n % 2 != 0) put(Element{}, half - 1, read_codes<Element>(codes + half - 1));
  } else {
    for_each<float, float>(n, nullptr, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
      put(unit, i, read_codes<decltype(unit)>(codes + i));
    });
  }
}

// --- runs: calls body(encoded block, number of elements before it, number of its elements) for each block --------------------

template <class Format, class Byte, class Body>
HVD_INLINE void each_block(Byte* coded, std::size_t n, std::size_t block, Body body) {
  for (std::size_t i = 0; i < n; i += block) {
    const std::size_t count = n - i < block ? n - i : block;
    body(coded, i, count);
    coded += kScaleBytes + code_bytes<Format>(count);
  }
}

template <class Format>
void encode(void* out, const void* in, std::size_t n, std::size_t block) {
  each_block<Format>(static_cast<std::byte*>(out), n, block,
                     [=](std::byte* coded, std::size_t i, std::size_t count)
                         HVD_INLINE_BODY { encode_block<Format>(coded, at<float>(in, i), count); });
}

template <class Format, bool kAdds>
void decode(void* out, const void* in, std::size_t n, std::size_t block) {
  each_block<Format>(static_cast<const std::byte*>(in), n, block,
                     [=](const std::byte* coded, std::size_t i, std::size_t count) HVD_INLINE_BODY {
                       decode_block<Format, kAdds>(at<float>(out, i), coded, count);
                     });
}

template <class Format>
constexpr CodecKernels codec_of() {
  return {encode<Format>, decode<Format, false>, decode<Format, true>};
}

}  // namespace hvdlite::kernels::HVD_KERNEL_NAMESPACE
