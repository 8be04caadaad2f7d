// The loops of the kernels of reductions, written once. Each instruction set's file defines HVD_KERNEL_NAMESPACE (its own
// namespace) and HVD_KERNEL_VECTOR_BYTES (its register width, 0 for none), includes kernels_impl.h, specialises Native with the
// few operations that need intrinsics, and turns make_table() into its table.
//
// No function of this file may have the same name for the linker as a function of baseline code. Otherwise the linker could
// keep the copy that was compiled for AVX-512 for the whole library, and the library would crash on older processors. So each
// instruction set has a namespace of its own, and this header calls functions of std:: and of other headers only if they are
// always_inline or evaluated at compile time.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/types.h"
#include "kernels/kernels.h"
#include "kernels/reduce_ops.h"
#include "kernels/table.h"

namespace hvdlite::kernels::HVD_KERNEL_NAMESPACE {

// --- kernels: what for_each applies --------------------------------------------------------------
//
// Kernels that other kernels call are noinline: with a copy of load and combine in every accumulate, the library would be a
// quarter larger.

template <class T, class A>
[[gnu::noinline]] void load(void* acc, const void* in, std::size_t n, double prescale) {
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
[[gnu::noinline]] void combine(void* out, const void* lhs, const void* rhs, std::size_t n) {
  for_each<A, A>(n, out, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
    using U = decltype(unit);
    using V = typename U::template Value<A>;
    const V left = U::template read<A, A>(at<A>(lhs, i));
    const V right = U::template read<A, A>(at<A>(rhs, i));
    U::template write<A, A>(at<A>(out, i), Op::template apply<V>(left, right));
  });
}

// kScales: multiplies each input by `factor` before Op combines it with the accumulator.
template <class T, class A, class Op, bool kScales>
void accumulate_all(void* acc, const void* in, std::size_t n, [[maybe_unused]] A factor) {
  for_each<A, A>(n, acc, [=](auto unit, std::size_t i) HVD_INLINE_BODY {
    using U = decltype(unit);
    using V = typename U::template Value<A>;
    V value = U::template read<T, A>(at<T>(in, i));
    if constexpr (kScales) value *= factor;
    const V sum = U::template read<A, A>(at<A>(acc, i));
    U::template write<A, A>(at<A>(acc, i), Op::template apply<V>(sum, value));
  });
}

template <class T, class A, class Op>
void accumulate(void* acc, const void* in, std::size_t n, double prescale) {
  if (prescale == 1.0 || std::is_same_v<T, Bool>) {
    accumulate_all<T, A, Op, false>(acc, in, n, A(1));
  } else if constexpr (kIsFloat<A>) {
    accumulate_all<T, A, Op, true>(acc, in, n, static_cast<A>(prescale));
  } else if constexpr (!std::is_same_v<T, Bool>) {
    // Integers are rarely scaled, so this makes two passes over a piece instead of one more loop for each T and Op.
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

// --- fold ----------------------------------------------------------------------------------------

// The kernels that fold_in_pieces calls. It gets them as pointers, so fold_in_pieces exists only once for all types.
struct FoldKernels {
  decltype(ReduceKernels::load) load;
  decltype(ReduceKernels::accumulate) accumulate;
  decltype(ReduceKernels::combine) combine;  // null unless T is A
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

// A list of pointers. kCount > 0: a copy of kCount pointers, so that they stay in registers. kCount == 0: refers to the
// caller's list.
template <class P, int kCount>
struct Places {
  explicit Places(P* const* from) {
    for (int k = 0; k < kCount; ++k) place[k] = from[k];
  }
  P* place[kCount];
};
template <class P>
struct Places<P, 0> {
  explicit Places(P* const* from) : place(from) {}
  P* const* place;
};

// Folds elements [begin, end) in pieces whose accumulators stay in the L1 cache. All inputs of a piece are read before any of
// its outputs is written, so outputs may be inputs.
[[gnu::noinline]] inline void fold_in_pieces(const Fold& fold, const FoldKernels& steps,
                                             std::size_t begin, std::size_t end) {
  alignas(64) std::byte acc[4096];
  const std::size_t piece = sizeof(acc) / steps.accumulator_bytes;
  for (std::size_t i = begin; i < end; i += piece) {
    const std::size_t count = end - i < piece ? end - i : piece;
    const std::size_t offset = i * steps.element_bytes;
    int k = 0;
    if (steps.combine != nullptr && fold.prescale == 1.0 && fold.num_in > 1) {
      const void* const first = at<std::byte>(fold.in[k++], offset);
      steps.combine(acc, first, at<std::byte>(fold.in[k++], offset), count);
    } else {
      steps.load(acc, at<std::byte>(fold.in[k++], offset), count, fold.prescale);
    }
    for (; k < fold.num_in; ++k) {
      steps.accumulate(acc, at<std::byte>(fold.in[k], offset), count, fold.prescale);
    }
    std::byte* const result = at<std::byte>(fold.out[0], offset);
    steps.store(result, acc, count, fold.postscale, fold.divisor);
    for (int j = 1; j < fold.num_out; ++j) {
      __builtin_memcpy(at<std::byte>(fold.out[j], offset), result, count * steps.element_bytes);
    }
  }
}

// Folds elements [begin, end), whose number is a multiple of AccumulatorBlock::kCount. kInputs and kOutputs: the numbers of
// inputs and outputs; 0: they are known only at run time.
template <class T, class A, class Op, bool kPrescaled, bool kFinished, int kInputs, int kOutputs>
void fold_in_registers(const Fold& fold, std::size_t begin, std::size_t end, A prescale, A factor) {
  using V = Pack<A>;
  const Places<const void, kInputs> in(fold.in);
  const Places<void, kOutputs> out(fold.out);
  const int num_in = kInputs == 0 ? fold.num_in : kInputs;
  const int num_out = kOutputs == 0 ? fold.num_out : kOutputs;
  const auto contribution = [=](int k, std::size_t i) HVD_INLINE_BODY {
    AccumulatorBlock<A> group;
    group.template read<T>(at<T>(in.place[k], i));
    if constexpr (kPrescaled) group.each([=](V& value) HVD_INLINE_BODY { value *= prescale; });
    return group;
  };
  for (std::size_t i = begin; i < end; i += AccumulatorBlock<A>::kCount) {
    AccumulatorBlock<A> acc = contribution(0, i);
    for (int k = 1; k < num_in; ++k) {
      acc.each(contribution(k, i), [](V& sum, const V& value) HVD_INLINE_BODY {
        sum = Op::template apply<V>(sum, value);
      });
    }
    if constexpr (kFinished) acc.each([=](V& value) HVD_INLINE_BODY { value *= factor; });
    for (int k = 0; k < num_out; ++k) {
      acc.template write<T, Op::kOneNan>(at<T>(out.place[k], i));
    }
  }
}

// An allreduce of two ranks folds two contributions into one or two places. For this case sums of floats have loops of their
// own. (If there are no casts and no factors, and one output, `fold` calls combine instead.)
template <class T, class A, class Op, bool kFinished>
void fold_unscaled(const Fold& fold, std::size_t begin, std::size_t end, A factor) {
  if constexpr (std::is_same_v<Op, Sum<A>> && kIsFloat<A>) {
    if ((kFinished || !std::is_same_v<T, A>) && fold.num_in == 2 && fold.num_out == 1) {
      return fold_in_registers<T, A, Op, false, kFinished, 2, 1>(fold, begin, end, A(1), factor);
    }
    if (fold.num_in == 2 && fold.num_out == 2) {
      return fold_in_registers<T, A, Op, false, kFinished, 2, 2>(fold, begin, end, A(1), factor);
    }
  }
  fold_in_registers<T, A, Op, false, kFinished, 0, 0>(fold, begin, end, A(1), factor);
}

// If fold_in_registers is faster than fold_in_pieces and gives the same NaNs, this calls it for [begin, end) and returns true.
// Otherwise it only returns false. Scaled integers are not folded in registers: they are rare, and dividing costs more than the
// extra passes of fold_in_pieces.
template <class T, class A, class Op>
bool folded_in_registers(const Fold& fold, std::size_t begin, std::size_t end) {
  if constexpr (kIsFloat<A>) {
    const A before = static_cast<A>(fold.prescale);
    const A after = static_cast<A>(fold.postscale / static_cast<double>(fold.divisor));
    // With kOneNan, AccumulatorBlock::write needs NaNs that come from Op. If there is only one input, or the factor is NaN, a
    // NaN may come from there.
    const bool other_nans = fold.num_in == 1 || after != after;
    if (std::is_same_v<T, BFloat16> && Op::kOneNan && other_nans) return false;
    // With a prescale the result is always multiplied by `after`, even if that is 1. A factor of 1 does not change a result
    // that comes from products: its NaNs are quiet, and its subnormals are flushed already if this thread flushes them. So
    // there is no loop for a prescale alone.
    if (fold.prescale != 1.0) {
      fold_in_registers<T, A, Op, true, true, 0, 0>(fold, begin, end, before, after);
    } else if (after != A(1)) {
      fold_unscaled<T, A, Op, true>(fold, begin, end, after);
    } else {
      fold_unscaled<T, A, Op, false>(fold, begin, end, A(1));
    }
    return true;
  } else {
    const bool scaled = fold.prescale != 1.0 || fold.postscale != 1.0 || fold.divisor != 1;
    if (scaled && !std::is_same_v<T, Bool>) return false;
    fold_unscaled<T, A, Op, false>(fold, begin, end, A(1));
    return true;
  }
}

template <class T, class A, class Op>
void fold(void* const* out, int num_out, const void* const* in, int num_in, std::size_t n,
          double prescale, double postscale, std::int64_t divisor) {
  const Fold operands{out, num_out, in, num_in, prescale, postscale, divisor};
  FoldKernels steps{load<T, A>, accumulate<T, A, Op>, nullptr, store<T, A>, sizeof(T), sizeof(A)};
  if constexpr (std::is_same_v<T, A>) {
    const bool unscaled = prescale == 1.0 && postscale == 1.0 && divisor == 1;
    if (num_in == 2 && num_out == 1 && unscaled) return combine<A, Op>(out[0], in[0], in[1], n);
    steps.combine = combine<A, Op>;
  }
  if constexpr (kVectorBytes != 0 && (kIsFloat<A> || sizeof(T) == sizeof(A))) {
    const std::size_t begin = lead_of<T, kVectorBytes>(out[0], n);
    const std::size_t end = n - (n - begin) % AccumulatorBlock<A>::kCount;
    if (end != begin && folded_in_registers<T, A, Op>(operands, begin, end)) {
      if (begin != 0) fold_in_pieces(operands, steps, 0, begin);
      if (end != n) fold_in_pieces(operands, steps, end, n);
      return;
    }
  }
  fold_in_pieces(operands, steps, 0, n);
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
  ReduceKernels(&row)[base::kNumReduceOps] = table.reduce[static_cast<int>(dtype)];
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

// Complex numbers are pairs of A. Real and imaginary parts are added separately.
template <class A>
struct Pairs {
  using Op = Sum<A>;
  static void load(void* acc, const void* in, std::size_t n, double prescale) {
    HVD_KERNEL_NAMESPACE::load<A, A>(acc, in, 2 * n, prescale);
  }
  static void accumulate(void* acc, const void* in, std::size_t n, double prescale) {
    HVD_KERNEL_NAMESPACE::accumulate<A, A, Op>(acc, in, 2 * n, prescale);
  }
  static void combine(void* out, const void* lhs, const void* rhs, std::size_t n) {
    HVD_KERNEL_NAMESPACE::combine<A, Op>(out, lhs, rhs, 2 * n);
  }
  static void store(void* out, const void* acc, std::size_t n, double postscale,
                    std::int64_t divisor) {
    HVD_KERNEL_NAMESPACE::store<A, A>(out, acc, 2 * n, postscale, divisor);
  }
  static void fold(void* const* out, int num_out, const void* const* in, int num_in, std::size_t n,
                   double prescale, double postscale, std::int64_t divisor) {
    HVD_KERNEL_NAMESPACE::fold<A, A, Op>(out, num_out, in, num_in, 2 * n, prescale, postscale,
                                         divisor);
  }
  static void fill_identity(void* acc, std::size_t n) {
    HVD_KERNEL_NAMESPACE::fill_identity<A, Op>(acc, 2 * n);
  }
};

template <class A>
consteval void set_complex_row(KernelTable& table, DType dtype) {
  ReduceKernels(&row)[base::kNumReduceOps] = table.reduce[static_cast<int>(dtype)];
  row[static_cast<int>(ReduceOp::kSum)] = {Pairs<A>::load,
                                           Pairs<A>::accumulate,
                                           Pairs<A>::combine,
                                           Pairs<A>::store,
                                           Pairs<A>::fold,
                                           Pairs<A>::fill_identity,
                                           dtype};
  row[static_cast<int>(ReduceOp::kAverage)] = row[static_cast<int>(ReduceOp::kSum)];
}

consteval void set_reductions(KernelTable& table) {
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
  set_complex_row<float>(table, DType::kComplex64);
  set_complex_row<double>(table, DType::kComplex128);
  ReduceKernels(&row)[base::kNumReduceOps] = table.reduce[static_cast<int>(DType::kBool)];
  row[static_cast<int>(ReduceOp::kSum)] = kernels_of<Bool, std::uint8_t, Or>(DType::kBool);
  row[static_cast<int>(ReduceOp::kMax)] = row[static_cast<int>(ReduceOp::kSum)];
  row[static_cast<int>(ReduceOp::kMin)] = kernels_of<Bool, std::uint8_t, And>(DType::kBool);
  row[static_cast<int>(ReduceOp::kProduct)] = row[static_cast<int>(ReduceOp::kMin)];
}

}  // namespace hvdlite::kernels::HVD_KERNEL_NAMESPACE
