// The loops of every kernel, written once. Each instruction set's file defines HVD_KERNEL_NAMESPACE
// (its own namespace) and HVD_KERNEL_VECTOR_BYTES (its register width, 0 for none), includes this
// header, specialises Native with the few operations that need intrinsics, and turns make_table()
// into its table.
//
// Nothing here may reach the linker under a name that baseline code shares: one out-of-line copy of
// a common inline function, compiled for AVX-512, would be kept for the whole library and crash
// older processors. Hence the own namespace, and no function of std:: or of another header unless
// it is always_inline or evaluated at compile time.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/types.h"
#include "kernels/kernels.h"
#include "kernels/reduce_table.h"
#include "kernels/reduce_units.h"

namespace hvdlite::kernels::HVD_KERNEL_NAMESPACE {

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

// The kernels that fold is defined by, and their element sizes: one text of fold_in_pieces serves all.
struct Steps {
  decltype(ReduceKernels::load) load;
  decltype(ReduceKernels::accumulate) accumulate;
  decltype(ReduceKernels::store) store;
  std::size_t element_bytes;
  std::size_t accumulator_bytes;
};

// The operands of one fold.
struct Fold {
  void* const* out;
  int num_out;
  const void* const* in;
  int num_in;
  double prescale;
  double postscale;
  std::int64_t divisor;
};

// Elements [begin, end), as many at a time as the first cache holds. All inputs of a piece are read
// before any of its outputs is written, so outputs may be inputs.
[[gnu::noinline]] inline void fold_in_pieces(const Fold& fold, const Steps& steps,
                                             std::size_t begin, std::size_t end) {
  alignas(64) std::byte acc[4096];
  const std::size_t piece = sizeof(acc) / steps.accumulator_bytes;
  for (std::size_t i = begin; i < end; i += piece) {
    const std::size_t count = end - i < piece ? end - i : piece;
    const std::size_t offset = i * steps.element_bytes;
    steps.load(acc, at<std::byte>(fold.in[0], offset), count, fold.prescale);
    for (int k = 1; k < fold.num_in; ++k) {
      steps.accumulate(acc, at<std::byte>(fold.in[k], offset), count, fold.prescale);
    }
    for (int k = 0; k < fold.num_out; ++k) {
      steps.store(at<std::byte>(fold.out[k], offset), acc, count, fold.postscale, fold.divisor);
    }
  }
}

// Packs in flight at a time: independent additions, and one look at a pointer for all of them.
inline constexpr std::size_t kPacksInFlight = 4;

// Elements [begin, end), a multiple of kPacksInFlight packs.
template <class T, class A, class Op, bool kPrescaled, bool kFinished>
void fold_in_registers(const Fold& fold, std::size_t begin, std::size_t end, A prescale, A factor) {
  void* const* const out = fold.out;
  const void* const* const in = fold.in;
  const int num_out = fold.num_out;
  const int num_in = fold.num_in;
  using V = Pack<A>;
  constexpr std::size_t kStep = kLanes<A>;
  const auto contribution = [prescale](const void* from, std::size_t i) HVD_INLINE_BODY {
    const V value = Packed::read<T, A>(at<T>(from, i));
    if constexpr (kPrescaled) {
      return V(value * prescale);
    } else {
      return value;
    }
  };
  for (std::size_t i = begin; i < end; i += kPacksInFlight * kStep) {
    V acc[kPacksInFlight];
#pragma GCC unroll 4
    for (std::size_t p = 0; p < kPacksInFlight; ++p) acc[p] = contribution(in[0], i + p * kStep);
    for (int k = 1; k < num_in; ++k) {
#pragma GCC unroll 4
      for (std::size_t p = 0; p < kPacksInFlight; ++p) {
        acc[p] = Op::template apply<V>(acc[p], contribution(in[k], i + p * kStep));
      }
    }
    if constexpr (kFinished) {
#pragma GCC unroll 4
      for (std::size_t p = 0; p < kPacksInFlight; ++p) acc[p] *= factor;
    }
    for (int k = 0; k < num_out; ++k) {
#pragma GCC unroll 4
      for (std::size_t p = 0; p < kPacksInFlight; ++p) {
        Packed::write<T, A>(at<T>(out[k], i + p * kStep), acc[p]);
      }
    }
  }
}

// In registers where it pays: scaled integers and integers that widen are rare and mostly divided.
template <class T, class A, class Op>
void fold(void* const* out, int num_out, const void* const* in, int num_in, std::size_t n,
          double prescale, double postscale, std::int64_t divisor) {
  const Fold fold{out, num_out, in, num_in, prescale, postscale, divisor};
  std::size_t begin = 0;
  std::size_t end = 0;  // [begin, end) is folded in registers
  if constexpr (kVectorBytes != 0 && (kIsFloat<A> || sizeof(T) == sizeof(A))) {
    begin = lead_of<T, kVectorBytes>(out[0], n);
    end = n - (n - begin) % (kPacksInFlight * kLanes<A>);
    if constexpr (kIsFloat<A>) {
      const A before = static_cast<A>(prescale);
      const A after = static_cast<A>(postscale / static_cast<double>(divisor));
      // A product is not changed by another factor of 1, nor is the Min or Sum of products: NaNs
      // are quiet and subnormals flushed already, if they are. Hence no loop for prescale alone.
      if (prescale != 1.0) {
        fold_in_registers<T, A, Op, true, true>(fold, begin, end, before, after);
      } else if (after != A(1)) {
        fold_in_registers<T, A, Op, false, true>(fold, begin, end, A(1), after);
      } else {
        fold_in_registers<T, A, Op, false, false>(fold, begin, end, A(1), A(1));
      }
    } else if (std::is_same_v<T, Bool> || (prescale == 1.0 && postscale == 1.0 && divisor == 1)) {
      fold_in_registers<T, A, Op, false, false>(fold, begin, end, A(1), A(1));
    } else {
      begin = end = 0;
    }
  }
  constexpr Steps kSteps{load<T, A>, accumulate<T, A, Op>, store<T, A>, sizeof(T), sizeof(A)};
  if (begin != 0) fold_in_pieces(fold, kSteps, 0, begin);
  if (end != n) fold_in_pieces(fold, kSteps, end, n);
}

template <class A, class Op>
void fill_identity(void* acc, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) write_raw<A>(at<A>(acc, i), Op::kIdentity);
}

// --- the table -----------------------------------------------------------------------------------

template <class T, class A, class Op>
consteval ReduceKernels kernels_of(DType accumulator) {
  return {load<T, A>,     accumulate<T, A, Op>, combine<A, Op>, store<T, A>,
          fold<T, A, Op>, fill_identity<A, Op>, accumulator};
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
