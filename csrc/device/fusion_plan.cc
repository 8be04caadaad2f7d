// Which kernel serves a conversion:
//
//    the bits stay as they are               hvdlite_copy        bytes, 16 at a time except at the ends of a piece
//    other integers and bool                 hvdlite_integers    one kernel, with the types as arguments
//    other floats, each of 4 to each of 4    16 kernels          the types are compiled in
//
// The bits stay as they are in these cases:
//
//    floats, complex numbers    equal types, factor / divisor rounds to 1, and nothing looks for infinite values and NaNs
//    integers                   equal types, factor = 1 and divisor = 1
//    bool                       bool to bool, bool to uint8, uint8 to bool; bool ignores the factor and the divisor
//
// The number of a float kernel in HVDLITE_KERNEL_LIST is kFirstFloat + from * kNumFloats + to. An example: bfloat16 is the
// second of the four floats (1) and float32 the third (2), so bfloat16 to float32 has the number 2 + 1 * 4 + 2 = 8.
//
// Floats have a kernel for each pair of types, because gradients pass through these kernels in each step. One kernel that asks
// for the type of each element would be limited by its computation instead of by memory. Complex numbers are pairs of floats,
// and use the kernels of floats with two units for each element.
//
// The results are those of csrc/kernels, bit by bit except for NaNs (tests/unit/test_fusion_kernels.py compares them). So it
// does not matter whether a tensor is converted on the host or on the GPU.
#include "device/fusion_plan.h"

#include <string>
#include <type_traits>

#include "base/error.h"

namespace hvdlite::device {

using base::DType;
using base::ReduceOp;

namespace {

constexpr int kNumFloats = 4;
constexpr int kCopy = 0;
constexpr int kIntegers = 1;
constexpr int kFirstFloat = 2;
static_assert(kNumKernels == kFirstFloat + kNumFloats * kNumFloats);

// The type of the numbers with which a kernel computes. For a complex type this is the type of the two parts.
DType unit_of(DType dtype) {
  if (dtype == DType::kComplex64) return DType::kFloat32;
  return dtype == DType::kComplex128 ? DType::kFloat64 : dtype;
}

// The place among the four floats, which have consecutive codes in DType: float16, bfloat16, float32, float64. -1: no float.
int float_number(DType dtype) {
  return base::is_float(dtype) ? static_cast<int>(dtype) - static_cast<int>(DType::kFloat16) : -1;
}

// The identity's bits, for one unit. Min starts from infinity. Max starts from -infinity, whose bits are those of -0 and of
// infinity together. Sums start from -0, as in csrc/kernels: -0 + x is x for every number x, but +0 + -0 is +0.
std::uint64_t float_identity(DType dtype, ReduceOp op) {
  struct Bits {
    std::uint64_t minus_zero, infinity, one;
  };
  constexpr Bits kBits[kNumFloats] = {
      {0x8000, 0x7c00, 0x3c00},
      {0x8000, 0x7f80, 0x3f80},
      {0x80000000, 0x7f800000, 0x3f800000},
      {0x8000000000000000, 0x7ff0000000000000, 0x3ff0000000000000},
  };
  const Bits& bits = kBits[static_cast<unsigned>(float_number(dtype)) % kNumFloats];
  if (op == ReduceOp::kMin) return bits.infinity;
  if (op == ReduceOp::kMax) return bits.infinity | bits.minus_zero;
  return op == ReduceOp::kProduct ? bits.one : bits.minus_zero;
}

// The identity's bits, for one unit of an integer type or bool. Signed types have odd numbers in DType. For bool Max is "any"
// and Min is "all".
std::uint64_t integer_identity(DType dtype, ReduceOp op) {
  const bool least = op == ReduceOp::kMax;
  if (op == ReduceOp::kProduct) return 1;
  if (!least && op != ReduceOp::kMin) return 0;
  if (dtype == DType::kBool) return least ? 0 : 1;
  // Example, int8: `sign` is 0x80, so Max starts from 0x80 = -128 and Min from 0x7f = 127. uint8: from 0 and from 0xff.
  const bool is_signed = static_cast<int>(dtype) % 2 != 0;
  const std::uint64_t sign = std::uint64_t{1} << (8 * base::size_of(dtype) - 1);
  if (least) return is_signed ? sign : 0;
  return is_signed ? sign - 1 : sign - 1 + sign;
}

// The identity's bits, repeated until they fill 8 bytes, so that a kernel can store them with wide stores.
std::uint64_t identity_of(DType unit, ReduceOp op) {
  const std::uint64_t bits =
      float_number(unit) >= 0 ? float_identity(unit, op) : integer_identity(unit, op);
  std::uint64_t repeated = bits;
  for (std::size_t size = 8 * base::size_of(unit); size < 64; size *= 2) {
    repeated |= repeated << size;
  }
  return repeated;
}

bool is_byte(DType dtype) { return dtype == DType::kBool || dtype == DType::kUInt8; }

}  // namespace

FusionPlan plan_fusion(const Conversion& conversion, bool flags) {
  HVD_CHECK(conversion.divisor >= 1);
  const DType from = unit_of(conversion.from);
  const DType to = unit_of(conversion.to);
  const int from_float = float_number(from);
  const int to_float = float_number(to);
  const bool is_complex = conversion.from != from;
  // Refused: a float to an integer, a complex number to a real one, and the reverse of both.
  if ((from_float < 0) != (to_float < 0) || is_complex != (conversion.to != to)) {
    throw base::Error(base::ErrorCode::kUnsupported,
                      "a GPU tensor of " + std::string(base::name_of(conversion.from)) +
                          " cannot travel as " + std::string(base::name_of(conversion.to)));
  }
  FusionPlan plan;
  plan.identity = identity_of(to, conversion.op);
  bool exact = false;
  if (from_float >= 0) {
    const double factor = conversion.factor / static_cast<double>(conversion.divisor);
    // If neither type is float64, the kernel computes in float32. The factor is rounded to float32 before it is compared with 1
    // below, so that the comparison sees the factor with which the kernel computes.
    const bool wide = from == DType::kFloat64 || to == DType::kFloat64;
    plan.factor = wide ? factor : static_cast<double>(static_cast<float>(factor));
    plan.number = kFirstFloat + from_float * kNumFloats + to_float;
    exact = from == to && plan.factor == 1.0 && !flags;
  } else {
    const bool scaled = conversion.factor != 1.0 || conversion.divisor != 1;
    const bool boolean = from == DType::kBool || to == DType::kBool;
    plan.factor = boolean ? 1.0 : conversion.factor;
    plan.divisor = boolean ? 1 : conversion.divisor;
    plan.number = kIntegers;
    exact = (is_byte(from) && is_byte(to) && (boolean || !scaled)) || (from == to && !scaled);
  }
  // The units of a copy are bytes: from_bytes, to_bytes and both alignments stay 1.
  if (exact) {
    plan.number = kCopy;
    plan.units = static_cast<std::uint32_t>(base::size_of(conversion.from));
  } else {
    plan.units = is_complex ? 2 : 1;
    plan.from_bytes = plan.from_align = static_cast<std::uint32_t>(base::size_of(from));
    plan.to_bytes = plan.to_align = static_cast<std::uint32_t>(base::size_of(to));
  }
  plan.from = static_cast<std::uint8_t>(from);
  plan.to = static_cast<std::uint8_t>(to);
  return plan;
}

}  // namespace hvdlite::device
