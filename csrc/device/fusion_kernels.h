// Tensor fusion on a GPU: copies any number of tensors into one buffer and back, with one launch each way, and scales and casts
// them in the copy.
// Thread: any (a lock for the upload of descriptors). Owns: the loaded module, memory for descriptors. Blocks: no; the first
// use of a GPU may compile the kernels (seconds, once: the result is kept on disk). Throws: Error(Unsupported) if neither a
// built-in image nor NVRTC gives kernels for this GPU (the text says what was tried), and for a pair of types without a kernel;
// Error(InvalidArgument) for a tensor that is not aligned for the conversion; Error(System) from the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/types.h"
#include "device/buffers.h"
#include "device/gpu.h"
#include "device/kernel_module.h"

namespace hvdlite::device {

// A run of elements of one tensor, and its place in the buffer. Offsets count elements of the buffer's dtype.
struct Piece {
  void* tensor = nullptr;  // pack: null means the identity of the op
  std::size_t offset = 0;  // in the buffer, elements
  std::size_t count = 0;   // elements
};

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

class FusionKernels {
 public:
  FusionKernels(GpuPtr gpu, const KernelSource& source);
  ~FusionKernels();
  FusionKernels(const FusionKernels&) = delete;
  FusionKernels& operator=(const FusionKernels&) = delete;
  // buffer[offset + i] = convert(tensor[i]). nonfinite: null, or an int in device memory for each piece; the kernel sets it to
  // 1 if a converted value is infinite or NaN, and leaves it alone otherwise. Copies work with any alignment; other conversions
  // need the alignment of the element. Offsets that are multiples of 16 bytes are fastest. The buffer must not overlap the
  // tensors, with one exception: a tensor may be its own place in the buffer if both types have the same size.
  void pack(std::span<const Piece> pieces, void* buffer, const Conversion& conversion,
            std::int32_t* nonfinite, cuda::Stream stream);
  // tensor[i] = convert(buffer[offset + i]). Skips pieces without a tensor.
  void unpack(std::span<const Piece> pieces, const void* buffer, const Conversion& conversion,
              std::int32_t* nonfinite, cuda::Stream stream);
  // The source of the kernels (kernel_module.h).
  const std::string& origin() const;
  // How many lists of pieces were copied to the GPU. A list is copied if it is new and too long for the arguments of a launch.
  std::int64_t uploads() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hvdlite::device
