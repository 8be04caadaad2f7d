// Chooses the fusion kernel for a conversion: the kernel's number, its units, and the identity.
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: Error(Unsupported) for a pair of types that has no kernel.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "cuda/fusion_arguments.h"

namespace hvdlite::device {

// y = x * factor / divisor for each element x, of type `from`, with the results of csrc/kernels; y has the type `to`. Floats
// are multiplied by factor / divisor, in double if one of the two types is float64 and in float32 otherwise, and rounded once.
// If the factor is 1, integers are divided exactly and truncated toward zero. Otherwise they are multiplied and divided in
// double, and then truncated. An integer result that is outside of the range of `to` becomes the nearest limit of this range.
// The kernels convert between floats, between integers (including bool, which ignores factor and divisor), and between complex
// numbers (pairs of floats); other pairs of types are refused. If the types are equal and factor and divisor are 1, the bits
// are copied, unless the kernel looks for infinite values and NaNs in floats. A NaN that is not copied becomes the GPU's own
// NaN.
struct Conversion {
  base::DType from = base::DType::kFloat32;
  base::DType to = base::DType::kFloat32;
  double factor = 1.0;
  std::int64_t divisor = 1;
  // A null tensor means the identity of this op, of type `to`.
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

// flags: does the kernel look for infinite values and NaNs? If so, it does not merely copy the bits of floats.
FusionPlan plan_fusion(const Conversion& conversion, bool flags);

}  // namespace hvdlite::device
