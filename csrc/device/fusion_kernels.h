// Tensor fusion on a GPU: copies any number of tensors into one buffer and back, with one launch for each direction, and scales
// and casts the elements on the way.
// Thread: any (a lock for the tables). Owns: the loaded module, memory for tables of pieces. Blocks: where PieceLists does; the
// constructor may compile the kernels (seconds, once: the result is kept on disk). Throws: Error(Unsupported) if neither a
// built-in image nor NVRTC gives kernels for this GPU (the text says what was tried), and for a pair of types without a kernel;
// Error(InvalidArgument) for a tensor that is not aligned for the conversion; Error(System) from the driver.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "device/fusion_plan.h"
#include "device/gpu.h"
#include "device/kernel_module.h"
#include "device/piece_lists.h"

namespace hvdlite::device {

class FusionKernels {
 public:
  FusionKernels(GpuPtr gpu, const KernelSource& source);
  FusionKernels(const FusionKernels&) = delete;
  FusionKernels& operator=(const FusionKernels&) = delete;
  // buffer[offset + i] = convert(tensor[i]). nonfinite: null, or an int in device memory for each piece; the kernel sets it to
  // 1 if a converted value is infinite or NaN, and leaves it alone otherwise. If the bits stay as they are, any alignment will
  // do. Other conversions need tensors and a buffer that are aligned to their numbers (of a complex type: to one part). Offsets
  // that are multiples of 16 bytes are fastest. The buffer must not overlap the tensors, with one exception: if both types have
  // the same size, a tensor may lie exactly at its place in the buffer.
  void pack(std::span<const Piece> pieces, void* buffer, const Conversion& conversion,
            std::int32_t* nonfinite, cuda::Stream stream);
  // tensor[i] = convert(buffer[offset + i]). Skips pieces without a tensor.
  void unpack(std::span<const Piece> pieces, const void* buffer, const Conversion& conversion,
              std::int32_t* nonfinite, cuda::Stream stream);
  // Where the kernels come from (kernel_module.h).
  const std::string& origin() const { return module_.origin(); }
  // How many tables of pieces were copied to the GPU (piece_lists.h).
  std::int64_t uploads() const;

 private:
  void move(std::span<const Piece> pieces, std::uintptr_t buffer, bool unpack,
            const Conversion& conversion, std::int32_t* nonfinite, cuda::Stream stream);
  void launch(const FusionPlan& plan, hvdlite_kernels::Arguments* arguments,
              cuda::Stream stream) const;

  const GpuPtr gpu_;
  const KernelModule module_;
  std::array<cuda::Function, kNumKernels> functions_{};
  mutable std::mutex mutex_;  // of the lists
  PieceLists lists_;
};

}  // namespace hvdlite::device
