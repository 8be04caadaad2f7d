// An operation on host memory: packs the tensors into one buffer if the algorithm needs one, runs the collective, and unpacks.
// Thread, Owns, Blocks, Throws: as operation.h says.
#pragma once

#include <memory>

#include "collectives/select.h"
#include "engine/execution/extents.h"
#include "engine/execution/fusion_buffer.h"
#include "engine/execution/operation.h"
#include "engine/execution/weight_exchange.h"
#include "engine/intake/shared_state.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

class HostOperation final : public Operation {
 public:
  // Objects that the operation uses and that must outlive it.
  struct Context {
    const ProcessSet& set;
    FusionBufferPool& pool;
    OutputCache& outputs;
    const collectives::Selection& selection;
    Counters& counters;
  };
  HostOperation(QueuedOperation what, collectives::Comm comm, const Context& context)
      : Operation(std::move(what)), comm_(std::move(comm)), context_(context) {}

  void start() override;
  bool advance() override;
  bool has_begun() const override { return !weights_.pending(); }
  void abandon() override;

 private:
  void start_allreduce();
  void start_prepared_allreduce();
  void reduce(collectives::Reduction reduction);
  void start_allreduce_in_place(collectives::Reduction reduction, bool scattered);
  void start_fused_allreduce(collectives::Reduction reduction);
  // Returns this rank's input of a part of the FusedOp; null if the rank has no value, or if its weight is 0.
  const void* input_of(std::size_t part) const;
  void start_broadcast();
  void unpack();
  // Gets memory for buffer_ and returns it.
  std::byte* scratch(std::size_t bytes);
  // Memory for the result of entry 0; scratch memory if this rank has joined.
  void* allocate_output(const Extents& extents);

  collectives::Comm comm_;
  Context context_;
  // The fusion buffer, or memory for a result that no caller of this rank gets.
  FusionBufferPool::Lease buffer_;
  bool packed_ = false;  // the result lies in buffer_; unpack() has to copy it to the outputs
  WeightExchange weights_;
  std::unique_ptr<collectives::Collective> collective_;
};

}  // namespace hvdlite::engine
