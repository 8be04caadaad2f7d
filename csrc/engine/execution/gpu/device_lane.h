// The GPU operations of one process set: their order, the link they go over, and what the GPU has not done yet of them.
// Thread: the holder of the progress token. Owns: the link, the operations. Blocks: never. Throws: what operation.h says, with
// the name of the operation in front; then abandon it.
//
// An operation starts when all before it have started and, if it goes through NCCL, the one before has handed all its calls over.
// One that goes through host memory moves data there when all before it have begun to: members take turns in the memory they share.
// It ends when its work is in the GPU's hands; the lane keeps its event until that is done, and asks NCCL meanwhile whether
// anything has gone wrong. Operations on host memory of the same set are in another lane, and neither waits for the other.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/execution/gpu/device_link.h"
#include "engine/execution/gpu/nccl_operation.h"
#include "engine/execution/gpu/staged_operation.h"
#include "engine/execution/operation.h"
#include "engine/intake/shared_state.h"

namespace hvdlite::engine {

class DeviceLane {
 public:
  // What all lanes of an engine have in common, which outlives them.
  struct Context {
    LinkContext link;
    SharedState& shared;
    FusionBufferPool& pool;
    DeviceWatcher& watcher;
  };

  DeviceLane(const Context& context, SharingSetPtr set,
             const std::array<std::uint32_t, DeviceLink::kTags>& tags, int home)
      : context_(context), set_(std::move(set)), link_(context_.link, set_, tags, home) {}

  void enqueue(FusedOp fused, std::vector<Entry> entries, std::uint32_t tag);
  bool advance();
  // Nothing waits or is being handed over, and the link is up.
  bool idle() const;
  // Has the GPU done all it was given?
  bool settled() const { return handed_over_.empty(); }
  // Calls visit(const Entry&) for each entry that has not been handed over.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const QueuedOperation& waiting : waiting_) std::ranges::for_each(waiting.entries, visit);
    for (const auto& operation : running_) std::ranges::for_each(operation->entries(), visit);
  }
  // Fails everything not finished; kernels that wait for a lost peer end.
  void abandon(const base::Status& why);
  // In good order, at the end of the set or of the engine: nothing is enqueued any more.
  void finish() { link_.finish(); }

 private:
  bool start();
  bool step();
  bool look_after();
  void report_not_finite(const FiniteCheck& check);
  std::unique_ptr<DeviceOperation> make(QueuedOperation waiting);
  bool takes_nccl(const FusedOp& fused) const;

  const Context& context_;
  const SharingSetPtr set_;
  DeviceLink link_;
  std::deque<QueuedOperation> waiting_;
  std::deque<std::unique_ptr<DeviceOperation>> running_;
  std::size_t running_bytes_ = 0;
  bool nccl_is_running_ = false;  // the last of those running, which goes through NCCL
  std::deque<HandedOver> handed_over_;
  base::Clock::time_point looked_at_;
  // On results that are not finite: since when lines are counted, how many came, and FusedOps that got none.
  base::Clock::time_point counted_since_;
  int lines_ = 0;
  std::uint64_t unreported_ = 0;
};

}  // namespace hvdlite::engine
