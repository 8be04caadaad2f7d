// An operation on GPU memory through NCCL, all of it in the link's stream.
// Thread, Owns, Blocks, Throws: as device_operation.h says.
//
// NCCL's calls may still be at work on the host when they return; until the communicator is no longer busy nothing may come after
// them, neither in the stream nor to the communicator.
#pragma once

#include "engine/execution/gpu/device_operation.h"
#include "engine/execution/gpu/nccl_recipe.h"

namespace hvdlite::engine {

class NcclOperation final : public DeviceOperation {
 public:
  // Can NCCL do this at all?
  static bool serves(const FusedOp& fused, const DeviceLink& link, int ranks);

  // check_finite: look at the results of allreduces of floats.
  NcclOperation(FusedOp fused, std::vector<Entry> entries, DeviceLink& link, const ProcessSet& set,
                bool check_finite);
  void start() override;
  bool advance() override;
  bool is_nccl() const override { return true; }

 private:
  void allreduce();
  void reducescatter();
  void reduce_rows(const void* from, void* to, const std::vector<std::size_t>& counts,
                   const Recipe& recipe);
  void allgather();
  void broadcast();
  void alltoall();
  Recipe recipe() const;
  // Calls of NCCL as one.
  template <typename Calls>
  void grouped(Calls calls);
  void check(device::nccl::Result result, const char* function);

  device::nccl::Comm comm() { return link().comm().get(); }
  const device::nccl::Functions& nccl() { return link().comm().nccl().call(); }
  device::cuda::Stream stream() { return link().stream(); }
  int ranks() const { return static_cast<int>(set_.members->size()); }

  const ProcessSet& set_;
  bool moves_ = false;           // something was called
  void* unpack_from_ = nullptr;  // not null: what NCCL leaves there has to be unpacked
  std::vector<device::Piece> unpack_to_;
};

}  // namespace hvdlite::engine
