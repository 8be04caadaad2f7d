// An operation on GPU memory through NCCL, with all work in the link's stream.
// Thread, Owns, Blocks, Throws: as device_operation.h says.
//
// After a call of NCCL has returned, NCCL may still work on the call on the host, and enqueue the kernels in the stream later.
// While the communicator is busy, this rank must enqueue nothing more in the stream, and make no other call on the
// communicator.
#pragma once

#include "engine/execution/gpu/device_operation.h"
#include "engine/execution/gpu/nccl_recipe.h"

namespace hvdlite::engine {

class NcclOperation final : public DeviceOperation {
 public:
  // Can NCCL carry out this operation?
  static bool serves(const FusedOp& fused, const DeviceLink& link);

  using DeviceOperation::DeviceOperation;
  void start() override;
  bool advance() override;
  bool is_nccl() const override { return true; }

 private:
  void allreduce();
  void reducescatter();
  void reduce_rows(const void* from, void* to, const Extents& extents, const Recipe& recipe);
  void allgather();
  void broadcast();
  void alltoall();
  Recipe recipe() const;
  // Runs several calls of NCCL as one group.
  template <typename Calls>
  void grouped(Calls calls);
  void check(device::nccl::Result result, const char* function);

  device::nccl::Comm comm() { return link().comm().get(); }
  const device::nccl::Functions& nccl() { return link().comm().nccl().call(); }
  device::cuda::Stream stream() { return link().stream(); }
  int ranks() const { return set().size(); }

  void* unpack_from_ = nullptr;  // a result that has to be unpacked; null: there is none
  std::vector<device::Piece> unpack_to_;
};

}  // namespace hvdlite::engine
