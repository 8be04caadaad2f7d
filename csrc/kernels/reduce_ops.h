// The operators of a reduction. They work on values of type V, which is the accumulator type A or a pack of A.
//
// Included by reduce_impl.h only, whose rules hold here, too. No include guard: each instruction set's file includes it once.
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/reduce_units.h"

namespace hvdlite::kernels::HVD_KERNEL_NAMESPACE {

// Every NaN result becomes the same NaN. Otherwise the compiler's order of operands would decide which of two NaN operands an
// addition keeps, and the processor would decide the sign of a new NaN.
template <class A, class V>
HVD_INLINE V with_one_nan(V value) {
  return value == value ? value : V{} + std::numeric_limits<A>::quiet_NaN();
}

template <class A>
struct Sum {
  static constexpr bool kOneNan = kIsFloat<A>;  // is every NaN result that of with_one_nan?
  // -0 + x is x for every x; +0 would turn -0 into +0.
  static constexpr A kIdentity = kIsFloat<A> ? A(-0.0) : A(0);

  template <class V>
  HVD_INLINE static V apply(V a, V b) {
    if constexpr (kIsFloat<A>) {
      return with_one_nan<A, V>(a + b);
    } else {
      using Bits = typename BitsOf<A, V>::Type;
      return V(Bits(a) + Bits(b));
    }
  }
};

template <class A>
struct Product {
  static constexpr bool kOneNan = kIsFloat<A>;
  static constexpr A kIdentity = A(1);

  template <class V>
  HVD_INLINE static V apply(V a, V b) {
    if constexpr (kIsFloat<A>) {
      return with_one_nan<A, V>(a * b);
    } else {
      using Bits = typename BitsOf<A, V>::Type;
      return V(1u * Bits(a) * Bits(b));  // 1u: 16 bits promote to int, whose product could overflow
    }
  }
};

// The hardware's minimum returns the second operand if either operand is NaN, or if both are zeros. In all other cases the
// minimum is the same in both orders. So this takes the minimum in both orders and combines the bits of both results by "or":
// NaN | x is a NaN, -0 | +0 is -0, and the result is symmetric.
template <class A, class V>
HVD_INLINE V minimum_of_floats(V a, V b) {
  using Bits = typename BitsOf<A, V>::Type;
  if constexpr (std::is_same_v<A, V>) {
    return __builtin_bit_cast(
        V, __builtin_bit_cast(Bits, a < b ? a : b) | __builtin_bit_cast(Bits, b < a ? b : a));
  } else {
    return V(Bits(Native<A>::lesser(a, b)) | Bits(Native<A>::lesser(b, a)));
  }
}

template <class A>
struct Min {
  static constexpr bool kOneNan = false;
  static constexpr A kIdentity =
      kIsFloat<A> ? std::numeric_limits<A>::infinity() : std::numeric_limits<A>::max();

  template <class V>
  HVD_INLINE static V apply(V a, V b) {
    if constexpr (kIsFloat<A>) {
      return minimum_of_floats<A>(a, b);
    } else {
      return a < b ? a : b;
    }
  }
};

template <class A>
struct Max {
  static constexpr bool kOneNan = false;
  static constexpr A kIdentity =
      kIsFloat<A> ? -std::numeric_limits<A>::infinity() : std::numeric_limits<A>::lowest();

  template <class V>
  HVD_INLINE static V apply(V a, V b) {
    if constexpr (kIsFloat<A>) {
      return -minimum_of_floats<A>(V(-a), V(-b));
    } else {
      return a > b ? a : b;
    }
  }
};

// And and Or of bytes 0 and 1 are Min and Max, except that the neutral element of And is 1, not 255.
struct And : Min<std::uint8_t> {
  static constexpr std::uint8_t kIdentity = 1;
};
struct Or : Max<std::uint8_t> {};

}  // namespace hvdlite::kernels::HVD_KERNEL_NAMESPACE
