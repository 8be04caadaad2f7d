// The building blocks of the kernels' loops, for one instruction set: vector registers ("packs"),
// the two units that a body is written for, and the loop that calls a body for all elements.
//
// T: element type. A: accumulator type. A body is a lambda with a unit (Element or Packed) and an index as arguments. The same
// source describes one element and one register of elements, so the instruction sets differ from the reference only in width.
//
// The rules of reduce_impl.h hold here, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/half.h"
#include "base/types.h"

#define HVD_INLINE [[gnu::always_inline]] inline
#define HVD_INLINE_BODY __attribute__((always_inline))

namespace hvdlite::kernels::HVD_KERNEL_NAMESPACE {

using base::BFloat16;
using base::DType;
using base::Float16;
using base::ReduceOp;

// One byte, true if not 0. Its accumulator is uint8_t holding 0 or 1.
struct Bool {
  std::uint8_t byte;
};

template <class A>
inline constexpr bool kIsFloat = std::is_floating_point_v<A>;
template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <class T>
HVD_INLINE const std::byte* at(const void* base, std::size_t i) {
  return static_cast<const std::byte*>(base) + i * sizeof(T);
}
template <class T>
HVD_INLINE std::byte* at(void* base, std::size_t i) {
  return static_cast<std::byte*>(base) + i * sizeof(T);
}

// memcpy, because pointers may have any alignment.
template <class V>
HVD_INLINE V read_raw(const std::byte* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}
template <class V>
HVD_INLINE void write_raw(std::byte* to, V value) {
  __builtin_memcpy(to, &value, sizeof(V));
}

// --- packs: a vector register of accumulator values ----------------------------------------------

inline constexpr std::size_t kVectorBytes = HVD_KERNEL_VECTOR_BYTES;
template <class A>
inline constexpr std::size_t kLanes = kVectorBytes / sizeof(A);

template <class T, std::size_t kCount>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kCount * sizeof(T))));
};
template <class A>
using Pack = typename VectorOf<A, kLanes<A>>::Type;

// Each instruction set defines Native for some types. Native<float>: read_float16, write_float16, read_uint16 (widens to 32
// bits), write_uint16 (narrows to 16 bits). Native<float> and Native<double>: lesser(a, b) = a < b ? a : b. Native<int64_t>:
// widen<T>, which reads integers T of at most 32 bits.
template <class A>
struct Native;

// BitsOf<A, V>::Type is the unsigned type for wrapping and bitwise arithmetic on V, which is A or Pack<A>.
template <std::size_t kBytes>
using UInt = std::conditional_t<
    kBytes == 1, std::uint8_t,
    std::conditional_t<kBytes == 2, std::uint16_t,
                       std::conditional_t<kBytes == 4, std::uint32_t, std::uint64_t>>>;
template <class A, class V>
struct BitsOf {
  using Type = Pack<UInt<sizeof(A)>>;
};
template <class A>
struct BitsOf<A, A> {
  using Type = UInt<sizeof(A)>;
};

// --- integers: saturating conversion -------------------------------------------------------------

// Truncates toward zero. A value out of range gives the nearest limit, NaN gives 0. The highest number of a 64-bit type is no
// double: the cast rounds it to 2^63 or 2^64, the first value that is out of range. So the comparison is >=.
template <class I>
HVD_INLINE I saturate(double value) {
  constexpr I kLowest = std::numeric_limits<I>::min();
  constexpr I kHighest = std::numeric_limits<I>::max();
  if (value >= static_cast<double>(kHighest)) return kHighest;
  if (value <= static_cast<double>(kLowest)) return kLowest;
  return value == value ? static_cast<I>(value) : I{0};
}

// Converts A to T. The types differ only for an Average of integers of less than 64 bits, which are accumulated in int64.
template <class T, class A>
HVD_INLINE T narrow(A value) {
  if constexpr (std::is_same_v<T, A>) {
    return value;
  } else {
    constexpr A kLowest = std::numeric_limits<T>::min();
    constexpr A kHighest = std::numeric_limits<T>::max();
    return static_cast<T>(value < kLowest ? kLowest : value > kHighest ? kHighest : value);
  }
}

// --- units: how a body reads T as A and writes A as T --------------------------------------------

struct Element {
  template <class A>
  using Value = A;

  template <class T, class A>
  HVD_INLINE static A read(const std::byte* from) {
    const T value = read_raw<T>(from);
    if constexpr (kIsHalf<T>) {
      return base::to_float(value);
    } else if constexpr (std::is_same_v<T, Bool>) {
      return value.byte != 0;
    } else {
      return static_cast<A>(value);
    }
  }

  template <class T, class A>
  HVD_INLINE static void write(std::byte* to, A value) {
    if constexpr (std::is_same_v<T, Float16>) {
      write_raw(to, base::to_float16(value));
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      write_raw(to, base::to_bfloat16(value));
    } else if constexpr (std::is_same_v<T, Bool>) {
      write_raw(to, Bool{value != 0});
    } else {
      write_raw(to, narrow<T>(value));
    }
  }
};

struct Packed {
  template <class A>
  using Value = Pack<A>;

  template <class T, class A>
  HVD_INLINE static Pack<A> read(const std::byte* from) {
    if constexpr (std::is_same_v<T, A>) {
      return read_raw<Pack<A>>(from);
    } else if constexpr (std::is_same_v<T, Bool>) {
      return Pack<A>(read_raw<Pack<A>>(from) != 0) & A{1};
    } else if constexpr (std::is_same_v<T, Float16>) {
      return Native<A>::read_float16(from);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      return Pack<A>(Native<A>::read_uint16(from) << 16);
    } else {
      return Native<A>::template widen<T>(from);
    }
  }

  template <class T, class A>
  HVD_INLINE static void write(std::byte* to, Pack<A> value) {
    if constexpr (std::is_same_v<T, A>) {
      write_raw(to, value);
    } else if constexpr (std::is_same_v<T, Bool>) {
      write_raw(to, Pack<A>(value != 0) & A{1});
    } else if constexpr (std::is_same_v<T, Float16>) {
      Native<A>::write_float16(to, value);
    } else {
      Native<A>::write_uint16(to, round_to_bfloat16<false, A>(value) >> 16);
    }
  }

  // As base::to_bfloat16; the result is the upper half of each lane. kOneNan: every NaN has a lower half of 0, as the NaN of
  // Sum and Product has. So rounding does not change the upper half of a NaN.
  template <bool kOneNan, class A>
  HVD_INLINE static auto round_to_bfloat16(Pack<A> value) {
    using Bits = typename BitsOf<A, Pack<A>>::Type;
    const Bits bits = Bits(value);
    const Bits rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    if constexpr (kOneNan) {
      return rounded;
    } else {
      const auto is_nan = value != value;
      return Bits(is_nan ? bits | 0x400000u : rounded);
    }
  }
};

// 256 bytes of accumulators. Their additions are independent, and so many that the processor need not wait for the end of one.
// Each pointer is read only once for a block. An element may be in any lane: one register of bfloat16 becomes a pack of its
// even elements and a pack of its odd elements, which takes only a shift and a mask, and no shuffle.
template <class A>
struct AccumulatorBlock {
  static constexpr std::size_t kCount = 256 / sizeof(A);  // elements
  static constexpr std::size_t kPacks = 256 / sizeof(Pack<A>);

  template <class T>
  HVD_INLINE void read(const std::byte* from) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      using Bits = typename BitsOf<A, Pack<A>>::Type;
#pragma GCC unroll 8
      for (std::size_t p = 0; p < kPacks; p += 2) {
        const auto pairs = read_raw<Bits>(from + p / 2 * sizeof(Bits));
        pack[p] = Pack<A>(pairs << 16);
        pack[p + 1] = Pack<A>(pairs & 0xffff0000u);
      }
    } else {
#pragma GCC unroll 8
      for (std::size_t p = 0; p < kPacks; ++p) {
        pack[p] = Packed::read<T, A>(at<T>(from, p * kLanes<A>));
      }
    }
  }

  // kOneNan: as in round_to_bfloat16.
  template <class T, bool kOneNan>
  HVD_INLINE void write(std::byte* to) const {
    if constexpr (std::is_same_v<T, BFloat16>) {
#pragma GCC unroll 8
      for (std::size_t p = 0; p < kPacks; p += 2) {
        const auto even = Packed::round_to_bfloat16<kOneNan, A>(pack[p]) >> 16;
        const auto odd = Packed::round_to_bfloat16<kOneNan, A>(pack[p + 1]) & 0xffff0000u;
        write_raw(to + p / 2 * sizeof(even), even | odd);
      }
    } else {
#pragma GCC unroll 8
      for (std::size_t p = 0; p < kPacks; ++p) {
        Packed::write<T, A>(at<T>(to, p * kLanes<A>), pack[p]);
      }
    }
  }

  // Calls body(pack) for every pack, or body(pack, the pack of `other` with the same number).
  template <class Body>
  HVD_INLINE void each(Body body) {
#pragma GCC unroll 8
    for (std::size_t p = 0; p < kPacks; ++p) body(pack[p]);
  }
  template <class Body>
  HVD_INLINE void each(const AccumulatorBlock& other, Body body) {
#pragma GCC unroll 8
    for (std::size_t p = 0; p < kPacks; ++p) body(pack[p], other.pack[p]);
  }

  Pack<A> pack[kPacks];
};

// `to` points to elements of type X. Returns the number of elements before the first one whose address is a multiple of
// kRegisterBytes; 0 if there is no such element, or if aligning takes longer than it saves.
template <class X, std::size_t kRegisterBytes>
HVD_INLINE std::size_t lead_of(const void* to, std::size_t n) {
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  if (n < 1024 || address % sizeof(X) != 0) return 0;
  return (0 - address) % kRegisterBytes / sizeof(X);
}

// Calls body(unit, i) for all n elements in ascending order: for whole registers of A (Packed), and for single elements
// (Element) before and after them. to: the address to which the body writes elements of type X. The single elements before the
// registers make the stores aligned: a store to two cache lines takes twice as long. A null `to` aligns nothing.
template <class A, class X, class Body>
HVD_INLINE void for_each(std::size_t n, const void* to, Body body) {
  std::size_t i = 0;
  if constexpr (kVectorBytes == 0) {
    for (; i < n; ++i) body(Element{}, i);
  } else {
    constexpr std::size_t kStep = kLanes<A>;
    for (std::size_t end = lead_of<X, kVectorBytes>(to, n);; end = n) {
      for (; i < end; ++i) {   // runs twice: before the first register and after the last
        __asm__ volatile("");  // no point in vectorising so few
        body(Element{}, i);
      }
      if (end == n) return;
      for (; n - i >= 4 * kStep; i += 4 * kStep) {
        body(Packed{}, i);
        body(Packed{}, i + kStep);
        body(Packed{}, i + 2 * kStep);
        body(Packed{}, i + 3 * kStep);
      }
      for (; n - i >= kStep; i += kStep) body(Packed{}, i);
    }
  }
}

}  // namespace hvdlite::kernels::HVD_KERNEL_NAMESPACE
