// The dtype in the buffer (wire) and NCCL's type for it:
//
//    dtype                          wire                                      NCCL reduces
//    bool                           uint8                                     uint8, with Max or Min
//    8-bit and 32-bit integers      int64 for an Average, else the same       the wire dtype
//    64-bit integers                the same                                  the wire dtype
//    float16, bfloat16              float32 for sums, if a member asks        the wire dtype
//                                   for float32 sums; else the same
//    float32, float64               Request::wire_dtype()                     the wire dtype
//    complex                        the same                                  two floats for each element (Recipe::parts)
//
// The divisor of an Average is usually the number of members. It is less if the Average does not count some of the members that
// have joined. Where the division happens:
//
//    floats and complex, unscaled, divisor = number of members > 1    by NCCL, as part of its operator Avg
//    otherwise, if the wire dtype is float16                          when packed
//    otherwise                                                        when unpacked
//
// For every operator the prescale is applied when a tensor is packed, and the postscale when it is unpacked. If nothing is
// converted (Recipe::plain), NCCL can use a single tensor as it is. Examples, if the wire dtype is the tensor's dtype: an
// unscaled Sum, and an Average that NCCL divides.
#include "engine/execution/gpu/nccl_recipe.h"

#include "kernels/kernels.h"

namespace hvdlite::engine {

using base::DType;
using base::ReduceOp;
namespace nccl = device::nccl;

namespace {

// The default case is for float32 and complex64. 16-bit integers have no recipe, so type_of never gets them.
nccl::DataType type_of(DType wire) {
  switch (wire) {
    case DType::kInt8:
      return nccl::kInt8;
    case DType::kUInt8:
    case DType::kBool:
      return nccl::kUInt8;
    case DType::kInt32:
      return nccl::kInt32;
    case DType::kUInt32:
      return nccl::kUInt32;
    case DType::kInt64:
      return nccl::kInt64;
    case DType::kUInt64:
      return nccl::kUInt64;
    case DType::kFloat16:
      return nccl::kFloat16;
    case DType::kBFloat16:
      return nccl::kBFloat16;
    case DType::kFloat64:
    case DType::kComplex128:
      return nccl::kFloat64;
    default:
      return nccl::kFloat32;
  }
}

// Booleans are bytes 0 and 1. As in hvdlite's kernels, their Sum is "any" (Max), and their Product is "all" (Min).
ReduceOp op_for(DType dtype, ReduceOp op) {
  if (dtype != DType::kBool) return op;
  return op == ReduceOp::kSum || op == ReduceOp::kMax ? ReduceOp::kMax : ReduceOp::kMin;
}

nccl::RedOp nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return nccl::kMin;
    case ReduceOp::kMax:
      return nccl::kMax;
    case ReduceOp::kProduct:
      return nccl::kProd;
    default:
      return nccl::kSum;
  }
}

// The dtype of the elements that NCCL reduces: Request::wire_dtype(), or another dtype that NCCL has or in which the sum is
// more exact.
DType wire_for(const Request& request, bool sums, bool float32_sums) {
  const bool average = request.op == ReduceOp::kAverage;
  switch (request.dtype) {
    case DType::kBool:
      return DType::kUInt8;
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kInt32:
    case DType::kUInt32:
      return average ? DType::kInt64 : request.dtype;
    case DType::kFloat16:
    case DType::kBFloat16:
      return float32_sums && sums ? DType::kFloat32 : request.dtype;
    default:
      return request.wire_dtype();
  }
}

}  // namespace

std::optional<Recipe> nccl_recipe(const Request& request, std::int64_t divisor, int ranks,
                                  bool float32_sums) {
  const bool floats = base::has_fractions(request.dtype);
  const bool average = request.op == ReduceOp::kAverage;
  const bool sums = average || request.op == ReduceOp::kSum;
  if (request.op == ReduceOp::kAdasum) return std::nullopt;
  // NCCL has no 16-bit integers. If NCCL added them as wider integers, unpacking would clamp the sums, but hvdlite's own sums
  // of 16-bit integers wrap.
  if (base::size_of(request.dtype) == 2 && !floats) return std::nullopt;
  Recipe recipe;
  const DType dtype = request.dtype == DType::kBool ? DType::kUInt8 : request.dtype;
  const DType wire = wire_for(request, sums, float32_sums);
  recipe.wire = wire;
  recipe.type = type_of(wire);
  recipe.parts = base::is_complex(wire) ? 2 : 1;
  const ReduceOp op = op_for(request.dtype, request.op);
  recipe.op = nccl_op(op);
  recipe.pack = {.from = dtype, .to = wire, .factor = request.prescale, .divisor = 1, .op = op};
  recipe.unpack = {.from = wire, .to = dtype, .factor = request.postscale, .divisor = 1, .op = op};
  const bool unscaled = request.prescale == 1.0 && request.postscale == 1.0;
  // The average of one rank is its sum, so NCCL gets ncclSum, and not ncclAvg: for some odd counts of 16-bit floats, NCCL's
  // kernel for the average of one rank does not write the last element (NCCL 2.28.9 on an H200: 8481 elements, out of place;
  // also if a program calls NCCL without hvdlite).
  if (average && floats && unscaled && divisor == ranks && ranks > 1) {
    recipe.op = nccl::kAvg;
  } else if (average && wire == DType::kFloat16) {
    // Each value is divided before NCCL adds: the sum of the values may overflow where their mean does not.
    recipe.pack.factor = request.prescale / static_cast<double>(divisor);
  } else if (average) {
    recipe.unpack.divisor = divisor;
  }
  recipe.plain = dtype == wire && recipe.pack.factor == 1.0 && recipe.unpack.factor == 1.0 &&
                 recipe.unpack.divisor == 1;
  return recipe;
}

}  // namespace hvdlite::engine
