// An operation on GPU memory that moves its data through host memory. On the staged route (chosen for example because two ranks
// share a GPU, or one rank has no NCCL) all GPU operations of a set are of this class. On the NCCL route, only the operations
// that NCCL cannot do are of this class.
// Thread, Blocks, Throws: as device_operation.h says. Owns: what device_operation.h says, and the collective that moves the
// copies.
//
//   arriving    pack (only an allreduce, see is_packed()), copy to page-locked memory, record an event
//   weighing    only for a weighted mean, after the event: the members exchange their weights
//   moving      after the event: a collective of host memory moves the copies, and does all scaling
//   returning   copy back, unpack, and record the operation's event
//
// A joined rank without a GPU takes part with ordinary memory instead of page-locked memory. If the members share memory for
// staged operations (Sharing in collectives/comm.h), the collectives move data through it. Operations use this memory one after
// the other, in the order in which they begin to move data, which is the lane's order (device_lane.h).
#pragma once

#include <memory>

#include "engine/execution/gpu/device_operation.h"
#include "engine/execution/weight_exchange.h"

namespace hvdlite::engine {

class StagedOperation final : public DeviceOperation {
 public:
  StagedOperation(QueuedOperation what, DeviceLink& link, collectives::Comm comm)
      : DeviceOperation(std::move(what), link), comm_(std::move(comm)) {}
  void start() override;
  bool advance() override;
  bool is_nccl() const override { return false; }
  bool awaits_turn() const override {
    return stage_ == Stage::kArriving || stage_ == Stage::kWeighing;
  }

 private:
  const DeviceContext& context() const { return link().context(); }
  enum class Stage { kArriving, kWeighing, kMoving, kFinished };

  void fetch();
  void move();
  void bring_back();
  void fetch_reduction();
  void move_allreduce();
  // Host memory for copies from and to the GPU.
  std::byte* host_memory(std::size_t bytes);
  // Starts to copy `bytes` bytes at `from` on the GPU to host memory. The copy is complete after `arrived_`.
  void fetch_bytes(std::byte* to, const void* from, std::size_t bytes);
  bool is_packed() const;
  // The bytes of one element, in the dtype in which it travels.
  std::size_t element_bytes() const { return base::size_of(first_request().wire_dtype()); }
  std::size_t buffer_bytes() const { return buffer_elements(element_bytes()) * element_bytes(); }

  collectives::Comm comm_;
  Stage stage_ = Stage::kArriving;
  bool fetched_ = false;        // a copy from the GPU was started
  device::EventPtr arrived_;    // after these copies; null: there are none
  std::byte* input_ = nullptr;  // host memory; null: this rank contributes nothing
  std::byte* output_ = nullptr;
  void* packed_ = nullptr;  // GPU memory with the tensors one after the other, in the wire dtype
  std::unique_ptr<Extents> extents_;
  std::vector<FusionBufferPool::Lease> leases_;  // host memory of a rank without a GPU
  WeightExchange weights_;
  std::unique_ptr<collectives::Collective> collective_;
};

}  // namespace hvdlite::engine
