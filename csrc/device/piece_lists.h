// Tables of pieces in the GPU's memory, for launches with more pieces than fit into the arguments of a kernel. A table is
// copied to the GPU once and then kept, because usually all training steps have the same tensors at the same addresses.
// Thread: one at a time (FusionKernels has the lock). Owns: the tables. Blocks: where BufferPool does, for a new table; and
// after an error, until the stream's work has ended. Throws: Error(System) from the driver.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "cuda/fusion_arguments.h"
#include "device/buffers.h"
#include "device/fusion_plan.h"
#include "device/piece_layout.h"

namespace hvdlite::device {

class PieceLists {
 public:
  explicit PieceLists(GpuPtr gpu);
  ~PieceLists();
  // The address of the table of these pieces for a launch in `stream`: an existing table, or a new one.
  std::uint64_t table(std::span<const Piece> pieces, const FusionPlan& plan,
                      const hvdlite_kernels::Arguments& arguments, cuda::Stream stream);
  // Call this after the launch that reads the table which table() has returned last.
  void used(cuda::Stream stream);
  std::int64_t uploads() const { return uploads_; }

 private:
  struct List;
  bool has_ended(cuda::Stream stream) const;
  List upload(std::span<const Piece> pieces, const FusionPlan& plan,
              const hvdlite_kernels::Arguments& arguments, cuda::Stream stream);

  const GpuPtr gpu_;
  const std::shared_ptr<BufferPool> memory_;
  const std::shared_ptr<BufferPool> pinned_;
  std::list<List> lists_;  // the most recently used table comes first
  std::size_t bytes_ = 0;
  std::int64_t uploads_ = 0;
};

}  // namespace hvdlite::device
