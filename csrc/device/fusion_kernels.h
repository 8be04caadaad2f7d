// Tensor fusion on a GPU: any number of tensors into one buffer and back, in one launch each way, scaled and cast on the way.
// Thread: any (a lock for the upload of descriptors). Owns: the loaded module, memory for descriptors. Blocks: no; the first
// use of a GPU may compile the kernels (seconds, once: the result is kept on disk). Throws: Error(Unsupported) if neither a
// built-in image nor NVRTC gives kernels for this GPU (the text says what was tried), Error(System) from the driver.
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

// What of a run of elements is at `tensor`; buffer offsets are given in elements of the buffer's dtype.
struct Piece {
  void* tensor = nullptr;  // pack: null stands for the identity of the op
  std::size_t offset = 0;  // in the buffer, elements
  std::size_t count = 0;   // elements
};

// y = T2(x * factor / divisor) element by element, computed as csrc/kernels does: floats are multiplied by the quotient, in double
// if one of the two types is float64 and in float32 otherwise, and rounded once; integers are divided exactly, truncated toward
// zero, or with a factor computed in double, truncated and saturated, as they are where T2 is narrower. Between floats, between
// integers (bool among them, which ignores factor and divisor) and between complex numbers (pairs of floats); anything else is
// refused. Equal types and a factor of 1 copy bits; a NaN that is converted becomes the GPU's own NaN.
struct Conversion {
  base::DType from = base::DType::kFloat32;
  base::DType to = base::DType::kFloat32;
  double factor = 1.0;
  std::int64_t divisor = 1;
  base::ReduceOp op = base::ReduceOp::kSum;  // whose identity a null tensor stands for, in `to`
};

class FusionKernels {
 public:
  FusionKernels(GpuPtr gpu, const KernelSource& source);
  ~FusionKernels();
  FusionKernels(const FusionKernels&) = delete;
  FusionKernels& operator=(const FusionKernels&) = delete;
  // buffer[offset + i] = convert(tensor[i]). nonfinite, if not null: an int in device memory for each piece, which becomes 1
  // if a value is infinite or NaN once it is converted (and is left alone otherwise). Any alignment will do for copies, that of
  // the element for the rest; it is fastest where offsets are multiples of 16 bytes. The buffer must not overlap the tensors,
  // except that a tensor may be its own place in the buffer if both types have the same size.
  void pack(std::span<const Piece> pieces, void* buffer, const Conversion& conversion,
            std::int32_t* nonfinite, cuda::Stream stream);
  // tensor[i] = convert(buffer[offset + i]); pieces without a tensor are left out.
  void unpack(std::span<const Piece> pieces, const void* buffer, const Conversion& conversion,
              std::int32_t* nonfinite, cuda::Stream stream);
  // Which way the kernels came (kernel_module.h).
  const std::string& origin() const;
  // How often a list of pieces was copied to the GPU: once for each that is too long for a launch and new.
  std::int64_t uploads() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hvdlite::device
