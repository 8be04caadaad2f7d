// Chooses the fusion kernel for a conversion: the kernel's number, its units, and the identity.
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: Error(Unsupported) for a pair of types that has no kernel.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "cuda/fusion_arguments.h"

namespace hvdlite::device {

// y = T2(x * factor / divisor), element by element, with the results of csrc/kernels. Floats are multiplied by the quotient, in
// double if one of the two types is float64 and in float32 otherwise, and rounded once. Integers are divided exactly and
// truncated toward zero; with a factor they are computed in double first. A result outside of T2's range becomes T2's nearest
// limit. The kernels convert between floats, between integers (including bool, which ignores factor and divisor), and between
// complex numbers (pairs of floats); other pairs are refused. Equal types with a factor and a divisor of 1 copy bits, unless
// floats are checked (nonfinite). A converted NaN becomes the GPU's own NaN.
struct Conversion {
  base::DType from = base::DType::kFloat32;
  base::DType to = base::DType::kFloat32;
  double factor = 1.0;
  std::int64_t divisor = 1;
  // A null tensor means the identity of this op, as type `to`.
  base::ReduceOp op = base::ReduceOp::kSum;
};

struct FusionPlan {
  int number = 0;                // its place in HVDLITE_KERNEL_LIST
  std::uint32_t units = 1;       // of an element
  std::uint32_t from_bytes = 1;  // of a unit
  std::uint32_t to_bytes = 1;
  std::uint32_t from_align = 1;  // the alignment that the kernel needs
  std::uint32_t to_align = 1;
  double factor = 1.0;
  std::int64_t divisor = 1;
  std::uint64_t identity = 0;
  std::uint8_t from = 0;
  std::uint8_t to = 0;
};

inline constexpr const char* kKernelNames[] = {
#define HVDLITE_KERNEL_NAME(name, ...) #name,
    HVDLITE_KERNEL_LIST(HVDLITE_KERNEL_NAME)
#undef HVDLITE_KERNEL_NAME
};
inline constexpr int kNumKernels = static_cast<int>(sizeof(kKernelNames) / sizeof(kKernelNames[0]));

// flags: does the kernel look for infinite values and NaNs? Then it does not merely copy the bits of floats.
FusionPlan plan_fusion(const Conversion& conversion, bool flags);

}  // namespace hvdlite::device
