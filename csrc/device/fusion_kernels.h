// Tensor fusion on a GPU: copies any number of tensors into one buffer and back, with one launch each way, and scales and casts
// them in the copy.
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
  // 1 if a converted value is infinite or NaN, and leaves it alone otherwise. Copies work with any alignment; other conversions
  // need the alignment of the element. Offsets that are multiples of 16 bytes are fastest. The buffer must not overlap the
  // tensors, with one exception: a tensor may be its own place in the buffer if both types have the same size.
  void pack(std::span<const Piece> pieces, void* buffer, const Conversion& conversion,
            std::int32_t* nonfinite, cuda::Stream stream);
  // tensor[i] = convert(buffer[offset + i]). Skips pieces without a tensor.
  void unpack(std::span<const Piece> pieces, const void* buffer, const Conversion& conversion,
              std::int32_t* nonfinite, cuda::Stream stream);
  // The source of the kernels (kernel_module.h).
  const std::string& origin() const { return module_.origin(); }
  // How many lists of pieces were copied to the GPU. A list is copied if it is new and too long for the arguments of a launch.
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
