// The GPU operations of one process set: their order, the link that moves their data, and the work that the GPU has not done
// yet.
// Thread: the holder of the progress token. Owns: the link, the operations. Blocks: as device_operation.h and device_link.h
// say. Throws: as operation.h says, with the operation's name in front; the owner then abandons the lane.
//
// Operations start in their order. While NCCL's host side still works on an operation's calls, no later operation starts
// (nccl_operation.h says why). A staged operation begins to move data in shared host memory only when all earlier staged
// operations have begun to do so, because operations use that memory one after the other. An operation ends when all its work
// is enqueued on the GPU. The lane keeps the operation's event until the GPU has done the work, and meanwhile asks NCCL for
// errors. The set's operations on host memory are in another lane, and neither lane waits for the other.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>

#include "engine/execution/gpu/device_link.h"
#include "engine/execution/gpu/nccl_operation.h"
#include "engine/execution/gpu/staged_operation.h"
#include "engine/execution/operation.h"
#include "engine/intake/shared_state.h"

namespace hvdlite::engine {

class DeviceLane {
 public:
  DeviceLane(const DeviceContext& context, SharingSetPtr set,
             const std::array<std::uint32_t, DeviceLink::kTags>& tags, int home)
      : context_(context), set_(std::move(set)), link_(context, set_, tags, home) {}

  void enqueue(QueuedOperation operation) { waiting_.push_back(std::move(operation)); }
  // Starts and advances operations. Returns true if anything happened.
  bool advance();
  // True if no operation waits or runs, and the link has its route.
  bool idle() const;
  // Has the GPU done all work of the operations that have ended?
  bool settled() const { return handed_over_.empty(); }
  // Calls visit(const Entry&) for each entry of the operations that have not been handed over.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const QueuedOperation& waiting : waiting_) std::ranges::for_each(waiting.entries, visit);
    for (const auto& operation : running_) std::ranges::for_each(operation->entries(), visit);
  }
  // Fails all unfinished operations. This also ends kernels that wait for a lost rank. Afterwards the owner calls no function
  // of the lane any more, but retains the lane, because the lane's operations keep the memory that the transport or a GPU may
  // still use.
  void abandon(const base::Status& why);
  // Called at the end of the set or of the engine, without a failure, when all operations have ended.
  void finish() { link_.finish(); }

 private:
  bool start();
  bool step();
  bool look_after();
  bool runs_nccl() const { return !running_.empty() && running_.back()->is_nccl(); }
  void report_not_finite(const FiniteCheck& check);
  std::unique_ptr<DeviceOperation> make(QueuedOperation waiting);

  const DeviceContext& context_;
  const SharingSetPtr set_;
  DeviceLink link_;
  std::deque<QueuedOperation> waiting_;
  std::deque<std::unique_ptr<DeviceOperation>> running_;
  std::size_t running_bytes_ = 0;
  std::deque<HandedOver> handed_over_;
  // When the lane last asked NCCL for errors.
  base::Clock::time_point looked_at_;
  // The number of log lines about results that are not finite is limited. For this limit: the beginning of the current
  // interval, the number of lines in it, and the number of FusedOps with such results that no line has reported yet.
  base::Clock::time_point counted_since_;
  int lines_ = 0;
  std::uint64_t unreported_ = 0;
};

}  // namespace hvdlite::engine
