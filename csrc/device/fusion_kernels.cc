// How a launch finds its tensors. All pieces are cut into tiles of one size; the last tile of a piece may be smaller
// (piece_layout.cc has an example). Each block of the grid moves one tile. So one launch moves any number of tensors, and many
// blocks share a large tensor.
//
//    short lists    the addresses, offsets and counts travel in the launch's arguments    no copy to the GPU
//    other lists    they are in a table in the GPU's memory (piece_lists.h)               copied if no kept table has the list
//
// A list is short if it has at most kInlinePieces pieces, and all counts and offsets in units are less than 2^32, because the
// arguments have 32 bits for each. The table has 64.
//
// The steps of pack and unpack: choose the kernel (plan_fusion), check the addresses, describe the pieces, find or upload the
// table if the list is not short, and launch. All checks come before the first call of the driver, so a refused conversion
// leaves the stream as it was.
//
// The lock is held from the search for a table until used() has recorded the launch. Otherwise another thread could drop the
// table before the launch, and the pool could give its memory to a new table. Launches without a table need no lock, because
// they change nothing that threads share.
#include "device/fusion_kernels.h"

#include <array>
#include <cstdio>
#include <utility>

#include "base/error.h"

namespace hvdlite::device {

using hvdlite_kernels::Arguments;

namespace {

std::string hexadecimal(std::uint64_t address) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(address));
  return text.data();
}

// For copies of bits the plan has an alignment of 1, so every address passes. Example: a float32 tensor at 0x7f02 can be
// copied, but not scaled or cast.
//
// A kernel that reads a misaligned element makes the GPU's context unusable until the process ends, so no such address may
// reach a kernel. All addresses are first tested together, because with a thousand tensors a division for each can take longer
// than the launch.
void check_alignment(std::span<const Piece> pieces, std::uintptr_t buffer, bool unpack,
                     const FusionPlan& plan) {
  const std::uint32_t tensor_align = unpack ? plan.to_align : plan.from_align;
  const std::uint32_t buffer_align = unpack ? plan.from_align : plan.to_align;
  HVD_CHECK(buffer % buffer_align == 0);
  std::uintptr_t bits = 0;
  for (const Piece& piece : pieces) {
    bits |= piece.count == 0 ? 0 : reinterpret_cast<std::uintptr_t>(piece.tensor);
  }
  // The alignment is a power of two, so it divides all addresses if it divides their bitwise "or".
  if (bits % tensor_align == 0) return;
  // The second pass finds the tensor that the error names.
  for (const Piece& piece : pieces) {
    const auto address = reinterpret_cast<std::uintptr_t>(piece.tensor);
    if (address % tensor_align == 0 || piece.count == 0) continue;
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      "a GPU tensor lies at " + hexadecimal(address) +
                          ", which is no multiple of the " + std::to_string(tensor_align) +
                          " bytes of its numbers, so it can be neither scaled nor cast; give a "
                          "copy of it");
  }
}

}  // namespace

// All kernels are looked up now, so pack and unpack never load code (kernel_module.h says why).
FusionKernels::FusionKernels(GpuPtr gpu, const KernelSource& source)
    : gpu_(std::move(gpu)), module_(gpu_, source), lists_(gpu_) {
  for (int i = 0; i < kNumKernels; ++i) functions_[i] = module_.function(kKernelNames[i]);
}

void FusionKernels::pack(std::span<const Piece> pieces, void* buffer, const Conversion& conversion,
                         std::int32_t* nonfinite, cuda::Stream stream) {
  move(pieces, reinterpret_cast<std::uintptr_t>(buffer), false, conversion, nonfinite, stream);
}

void FusionKernels::unpack(std::span<const Piece> pieces, const void* buffer,
                           const Conversion& conversion, std::int32_t* nonfinite,
                           cuda::Stream stream) {
  move(pieces, reinterpret_cast<std::uintptr_t>(buffer), true, conversion, nonfinite, stream);
}

void FusionKernels::move(std::span<const Piece> pieces, std::uintptr_t buffer, bool unpack,
                         const Conversion& conversion, std::int32_t* nonfinite,
                         cuda::Stream stream) {
  const FusionPlan plan = plan_fusion(conversion, nonfinite != nullptr);
  check_alignment(pieces, buffer, unpack, plan);
  Arguments arguments;  // no kernel reads the fields that stay uninitialised
  const bool fits = describe_pieces(pieces, plan, unpack, gpu_->multiprocessors(), &arguments);
  // Nothing to move, and the driver refuses a grid without blocks.
  if (arguments.tiles == 0) return;
  arguments.buffer = buffer;
  arguments.nonfinite = reinterpret_cast<std::uintptr_t>(nonfinite);
  arguments.factor = plan.factor;
  arguments.divisor = plan.divisor;
  arguments.identity = plan.identity;
  arguments.from = plan.from;
  arguments.to = plan.to;
  arguments.unused = 0;
  if (fits) return launch(plan, &arguments, stream);
  const std::lock_guard lock(mutex_);
  arguments.table = lists_.table(pieces, plan, arguments, stream);
  launch(plan, &arguments, stream);
  lists_.used(stream);
}

// The driver copies the arguments before it returns, so they may be on the caller's stack.
void FusionKernels::launch(const FusionPlan& plan, Arguments* arguments,
                           cuda::Stream stream) const {
  void* parameters[] = {arguments};
  const Current current(*gpu_);
  gpu_->driver().check(gpu_->call().LaunchKernel(functions_[static_cast<std::size_t>(plan.number)],
                                                 arguments->tiles, 1, 1, hvdlite_kernels::kThreads,
                                                 1, 1, 0, stream, parameters, nullptr),
                       "cuLaunchKernel");
}

std::int64_t FusionKernels::uploads() const {
  const std::lock_guard lock(mutex_);
  return lists_.uploads();
}

}  // namespace hvdlite::device
