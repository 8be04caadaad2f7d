// One FusedOp under way: packs if the algorithm needs it, runs its collective, unpacks, fills in the completions.
// Thread: the holder of the progress token. Owns: the collective, the fusion buffer, the outputs it makes until they are
// handed to the completions. Blocks: never. Throws: what Transport and the kernels throw; then it must be parked (kept), as
// the transport may still touch its memory.
#pragma once

#include <memory>
#include <vector>

#include "collectives/select.h"
#include "engine/fusion_buffer.h"
#include "engine/fusion_planner.h"
#include "engine/process_set.h"

namespace hvdlite::engine {

// How ranks combine what they gave for this request; an Average divides by `divisor`.
collectives::Reduction reduction_of(const Request& request, std::int64_t divisor);

class Operation {
 public:
  // entries[i] is this rank's part in fused.parts[i]; one without a request means that this rank has joined.
  Operation(FusedOp fused, std::vector<Entry> entries);

  // Apart from the constructor so that the entries are not lost if it throws.
  void start(collectives::Comm comm, const ProcessSet& set, BufferPool& pool, OutputCache& outputs,
             const collectives::Selection& selection);
  // True when finished; the entries' completions then hold the results but are not marked done.
  bool advance();
  std::vector<Entry>& entries() { return entries_; }
  std::size_t bytes() const { return bytes_; }
  const Request& first_request() const { return fused_.first(); }

 private:
  struct Context {
    collectives::Comm comm;
    const ProcessSet& set;
    BufferPool& pool;
    OutputCache& outputs;
    const collectives::Selection& selection;
  };
  void start_allreduce(Context& context);
  void start_scattered_allreduce(Context& context);
  void start_fused_allreduce(Context& context);
  void start_single_allreduce(Context& context);
  void start_allgather(Context& context);
  void start_broadcast(Context& context);
  void start_alltoall(Context& context);
  void start_reducescatter(Context& context);
  void unpack();
  // Memory for the result of entry 0 (or scratch if this rank has joined).
  void* allocate_output(Context& context, std::size_t bytes);

  FusedOp fused_;
  std::vector<Entry> entries_;
  std::size_t bytes_ = 0;
  BufferPool::Buffer buffer_;
  bool packed_ = false;  // the result lies in buffer_ and has to be copied out
  std::unique_ptr<collectives::Collective> collective_;
};

}  // namespace hvdlite::engine
