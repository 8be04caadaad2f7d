// The loops of every kernel, written once. Each instruction set's file defines HVD_KERNEL_NAMESPACE
// (its own namespace) and HVD_KERNEL_VECTOR_BYTES (its register width, 0 for none), includes this
// header, specialises Native with the few operations that need intrinsics, and turns make_table()
// into its table.
//
// Nothing here may reach the linker under a name that baseline code shares: one out-of-line copy of
// a common inline function, compiled for AVX-512, would be kept for the whole library and crash
// older processors. Hence the own namespace, and no function of std:: or of another header unless
// it is always_inline or evaluated at compile time.
//
// T: element type. A: accumulator type. A body is a lambda over a unit (Element or Packed) and an
// index: the same text describes one element and one register of them, so no instruction set can
// differ from the reference in more than width.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/half.h"
#include "base/types.h"
#include "kernels/kernels.h"
#include "kernels/reduce_table.h"

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

// What an instruction set adds. Native<float>: read_float16, write_float16, read_uint16 (widens to
// 32 bits), write_uint16 (narrows); Native<float> and <double>: lesser(a, b) = a < b ? a : b;
// Native<int64_t>: widen<T>, T an integer of at most 32 bits.
template <class A>
struct Native;

// The type for wrapping and bitwise arithmetic on V, which is A or Pack<A>.
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

// Truncates toward zero; out of range gives the nearest limit, NaN gives 0. The limits of 64-bit
// types are not doubles: their upper one rounds to 2^63 or 2^64, the first value that is out of
// range, hence >=.
template <class I>
HVD_INLINE I saturate(double value) {
  constexpr I kLowest = std::numeric_limits<I>::min();
  constexpr I kHighest = std::numeric_limits<I>::max();
  if (value >= static_cast<double>(kHighest)) return kHighest;
  if (value <= static_cast<double>(kLowest)) return kLowest;
  return value == value ? static_cast<I>(value) : I{0};
}

// A to T; they differ only where an Average of a narrower T was accumulated in int64.
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
    } else {  // BFloat16: base::to_bfloat16
      using Bits = typename BitsOf<A, Pack<A>>::Type;
      const Bits bits = Bits(value);
      const Bits rounded = bits + 0x7fffu + (bits >> 16 & 1u);
      const auto is_nan = value != value;
      Native<A>::write_uint16(to, (is_nan ? bits | 0x400000u : rounded) >> 16);
    }
  }
};

// Elements before the first register boundary of `to`, which holds X; 0 where aligning does not pay
// or cannot be had.
template <class X, std::size_t kRegisterBytes>
HVD_INLINE std::size_t lead_of(const void* to, std::size_t n) {
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  if (n < 1024 || address % sizeof(X) != 0) return 0;
  return (0 - address) % kRegisterBytes / sizeof(X);
}

// Calls body(unit, i) for all n elements in ascending order, in registers of A as long as they
// last. to: where the body writes X. Its stores are aligned first: one that straddles two cache
// lines costs twice.
template <class A, class X, class Body>
HVD_INLINE void for_each(std::size_t n, const void* to, Body body) {
  std::size_t i = 0;
  if constexpr (kVectorBytes == 0) {
    for (; i < n; ++i) body(Element{}, i);
  } else {
    constexpr std::size_t kStep = kLanes<A>;
    for (std::size_t end = lead_of<X, kVectorBytes>(to, n);; end = n) {
      for (; i < end; ++i) {   // twice: before the first register and after the last
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

// --- operators -----------------------------------------------------------------------------------

// One NaN for all: which of two NaN operands an addition keeps depends on how the compiler orders
// them, and the sign of a new NaN on the processor.
template <class A, class V>
HVD_INLINE V with_one_nan(V value) {
  return value == value ? value : V{} + std::numeric_limits<A>::quiet_NaN();
}

template <class A>
struct Sum {
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

// The hardware's minimum is its second operand where either is NaN and where both are zeros. So the
// two orders agree except there, and "or" of their bits is what is wanted: NaN | x is a NaN, -0 |
// +0 is -0; and it is symmetric.
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

// Of bytes 0 and 1: Min and Max, but the neutral element of And is 1, not 255.
struct And : Min<std::uint8_t> {
  static constexpr std::uint8_t kIdentity = 1;
};
struct Or : Max<std::uint8_t> {};

// --- kernels -------------------------------------------------------------------------------------

template <class T, class A>
void load(void* acc, const void* in, std::size_t n, double prescale) {
  if (prescale == 1.0 || std::is_same_v<T, Bool>) {
    if constexpr (std::is_same_v<T, A>) {
      if (acc != in && n != 0) __builtin_memcpy(acc, in, n * sizeof(T));
    } else {
      for_each<A, A>(n, acc, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
        using U = decltype(unit);
        U::template write<A, A>(at<A>(acc, i), U::template read<T, A>(at<T>(in, i)));
      });
    }
  } else if constexpr (kIsFloat<A>) {
    const A factor = static_cast<A>(prescale);
    for_each<A, A>(n, acc, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
      using U = decltype(unit);
      U::template write<A, A>(at<A>(acc, i), U::template read<T, A>(at<T>(in, i)) * factor);
    });
  } else if constexpr (!std::is_same_v<T, Bool>) {
    for (std::size_t i = 0; i < n; ++i) {
      const double value = static_cast<double>(read_raw<T>(at<T>(in, i)));
      write_raw(at<A>(acc, i), saturate<A>(value * prescale));
    }
  }
}

template <class A, class Op>
void combine(void* out, const void* lhs, const void* rhs, std::size_t n) {
  for_each<A, A>(n, out, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
    using U = decltype(unit);
    using V = typename U::template Value<A>;
    const V left = U::template read<A, A>(at<A>(lhs, i));
    const V right = U::template read<A, A>(at<A>(rhs, i));
    U::template write<A, A>(at<A>(out, i), Op::template apply<V>(left, right));
  });
}

template <class T, class A, class Op>
void accumulate(void* acc, const void* in, std::size_t n, double prescale) {
  if (prescale == 1.0 || std::is_same_v<T, Bool>) {
    for_each<A, A>(n, acc, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
      using U = decltype(unit);
      using V = typename U::template Value<A>;
      const V value = U::template read<T, A>(at<T>(in, i));
      const V sum = U::template read<A, A>(at<A>(acc, i));
      U::template write<A, A>(at<A>(acc, i), Op::template apply<V>(sum, value));
    });
  } else if constexpr (kIsFloat<A>) {
    const A factor = static_cast<A>(prescale);
    for_each<A, A>(n, acc, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
      using U = decltype(unit);
      using V = typename U::template Value<A>;
      const V value = U::template read<T, A>(at<T>(in, i)) * factor;
      const V sum = U::template read<A, A>(at<A>(acc, i));
      U::template write<A, A>(at<A>(acc, i), Op::template apply<V>(sum, value));
    });
  } else if constexpr (!std::is_same_v<T, Bool>) {
    // Integers are seldom scaled: two passes over a piece, not one more loop for each T and Op.
    A scaled[256];
    constexpr std::size_t kPiece = sizeof(scaled) / sizeof(A);
    for (std::size_t i = 0; i < n; i += kPiece) {
      const std::size_t count = n - i < kPiece ? n - i : kPiece;
      load<T, A>(scaled, at<T>(in, i), count, prescale);
      combine<A, Op>(at<A>(acc, i), at<A>(acc, i), scaled, count);
    }
  }
}

template <class T, class A>
void store_integers(void* out, const void* acc, std::size_t n, double postscale,
                    std::int64_t divisor) {
  using Wide = std::conditional_t<std::is_signed_v<A>, std::int64_t, std::uint64_t>;
  for (std::size_t i = 0; i < n; ++i) {
    const A value = read_raw<A>(at<A>(acc, i));
    T result;
    if (postscale == 1.0) {
      result = narrow<T>(static_cast<A>(static_cast<Wide>(value) / static_cast<Wide>(divisor)));
    } else {
      result = saturate<T>(static_cast<double>(value) * postscale / static_cast<double>(divisor));
    }
    write_raw(at<T>(out, i), result);
  }
}

template <class T, class A>
void store(void* out, const void* acc, std::size_t n, double postscale, std::int64_t divisor) {
  const bool exact = std::is_same_v<T, Bool> || (postscale == 1.0 && divisor == 1);
  if constexpr (kIsFloat<A>) {
    const A factor = static_cast<A>(postscale / static_cast<double>(divisor));
    if (factor != A(1)) {
      for_each<A, T>(n, out, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
        using U = decltype(unit);
        U::template write<T, A>(at<T>(out, i), U::template read<A, A>(at<A>(acc, i)) * factor);
      });
      return;
    }
  } else if constexpr (!std::is_same_v<T, Bool>) {
    if (!exact) return store_integers<T, A>(out, acc, n, postscale, divisor);
  }
  if constexpr (std::is_same_v<T, A>) {
    if (out != acc && n != 0) __builtin_memcpy(out, acc, n * sizeof(T));
  } else if constexpr (std::is_integral_v<T>) {
    store_integers<T, A>(out, acc, n, 1.0, 1);
  } else {
    for_each<A, T>(n, out, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
      using U = decltype(unit);
      U::template write<T, A>(at<T>(out, i), U::template read<A, A>(at<A>(acc, i)));
    });
  }
}

template <class A, class Op>
void fill_identity(void* acc, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) write_raw<A>(at<A>(acc, i), Op::kIdentity);
}

// --- the table -----------------------------------------------------------------------------------

template <class T, class A, class Op>
consteval ReduceKernels kernels_of(DType accumulator) {
  return {load<T, A>,  accumulate<T, A, Op>, combine<A, Op>,
          store<T, A>, fill_identity<A, Op>, accumulator};
}

// Elements T; Average accumulates in W, everything else in A.
template <class T, class A, class W>
consteval void set_row(KernelTable& table, DType dtype, DType accumulator, DType wide) {
  ReduceKernels(&row)[kNumReduceOps] = table.at[static_cast<int>(dtype)];
  row[static_cast<int>(ReduceOp::kAverage)] = kernels_of<T, W, Sum<W>>(wide);
  row[static_cast<int>(ReduceOp::kSum)] = kernels_of<T, A, Sum<A>>(accumulator);
  row[static_cast<int>(ReduceOp::kMin)] = kernels_of<T, A, Min<A>>(accumulator);
  row[static_cast<int>(ReduceOp::kMax)] = kernels_of<T, A, Max<A>>(accumulator);
  row[static_cast<int>(ReduceOp::kProduct)] = kernels_of<T, A, Product<A>>(accumulator);
}

template <class T>
consteval void set_integer_row(KernelTable& table, DType dtype) {
  constexpr bool kWide = sizeof(T) == 8;
  using W = std::conditional_t<kWide, T, std::int64_t>;
  set_row<T, T, W>(table, dtype, dtype, kWide ? dtype : DType::kInt64);
}

consteval KernelTable make_table() {
  KernelTable table{};
  set_integer_row<std::uint8_t>(table, DType::kUInt8);
  set_integer_row<std::int8_t>(table, DType::kInt8);
  set_integer_row<std::uint16_t>(table, DType::kUInt16);
  set_integer_row<std::int16_t>(table, DType::kInt16);
  set_integer_row<std::uint32_t>(table, DType::kUInt32);
  set_integer_row<std::int32_t>(table, DType::kInt32);
  set_integer_row<std::uint64_t>(table, DType::kUInt64);
  set_integer_row<std::int64_t>(table, DType::kInt64);
  set_row<Float16, float, float>(table, DType::kFloat16, DType::kFloat32, DType::kFloat32);
  set_row<BFloat16, float, float>(table, DType::kBFloat16, DType::kFloat32, DType::kFloat32);
  set_row<float, float, float>(table, DType::kFloat32, DType::kFloat32, DType::kFloat32);
  set_row<double, double, double>(table, DType::kFloat64, DType::kFloat64, DType::kFloat64);
  ReduceKernels(&row)[kNumReduceOps] = table.at[static_cast<int>(DType::kBool)];
  row[static_cast<int>(ReduceOp::kSum)] = kernels_of<Bool, std::uint8_t, Or>(DType::kBool);
  row[static_cast<int>(ReduceOp::kMax)] = row[static_cast<int>(ReduceOp::kSum)];
  row[static_cast<int>(ReduceOp::kMin)] = kernels_of<Bool, std::uint8_t, And>(DType::kBool);
  row[static_cast<int>(ReduceOp::kProduct)] = row[static_cast<int>(ReduceOp::kMin)];
  return table;
}

}  // namespace hvdlite::kernels::HVD_KERNEL_NAMESPACE
