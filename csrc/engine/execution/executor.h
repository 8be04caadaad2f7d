// Runs what was agreed: per process set in one order, several operations in flight at once.
// Thread: the holder of the progress token. Owns: all operations, and the parked ones of a failed engine. Blocks: never, but
// close, for a moment. Throws: what operation.h says.
//
// Deadlock-free: the oldest unfinished operation of a lane is always in flight on every member that knows of it, and
// nothing in one lane waits for another. A process set has a lane for host memory and, once it has done anything on a GPU, one
// for that (device_lane.h).
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <span>

#include "engine/execution/gpu/device_lane.h"
#include "engine/execution/host/host_operation.h"
#include "engine/intake/shared_state.h"
#include "transport/transport.h"

namespace hvdlite::engine {

class Executor {
 public:
  Executor(transport::Transport& transport, collectives::Selection selection, SharedState& shared);
  ~Executor();

  void enqueue(ExecutionSet& set, FusedOp fused, std::vector<Entry> entries);
  // Starts what may start and advances what is in flight; true if anything finished or started.
  bool advance();
  bool idle() const;
  bool idle(SetId set) const;
  // Have the GPUs done all they were given?
  bool settled() const;
  // Calls visit(const Entry&) for each entry that has not ended; those without a request are not this rank's.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& [id, lane] : lanes_) {
      for (const Waiting& waiting : lane.waiting) std::ranges::for_each(waiting.entries, visit);
      for (const auto& operation : lane.running) std::ranges::for_each(operation->entries(), visit);
    }
    for (const auto& [id, lane] : device_lanes_) lane->for_each(visit);
  }
  // No operation of the set follows.
  void forget(SetId set);
  // Fails everything not finished and keeps its memory for good. lost: others cannot be relied on any more.
  void park_all(const base::Status& why, bool lost);
  // The transport is closed; memory_is_free: nothing touches parked operations any more.
  void close(bool memory_is_free);

 private:
  struct Waiting {
    FusedOp fused;
    std::vector<Entry> entries;
    std::uint32_t tag = 0;
  };
  // The operations of one process set.
  struct Lane {
    SharingSetPtr set;
    std::deque<Waiting> waiting;
    std::deque<std::unique_ptr<Operation>> running;
    std::size_t running_bytes = 0;
  };
  std::uint32_t next_tag(ExecutionSet& set) const;
  DeviceLane& device_lane(ExecutionSet& set, const std::vector<Entry>& entries);
  bool start(Lane& lane);
  bool step(Lane& lane);
  bool advance_devices();

  transport::Transport& transport_;
  collectives::Selection selection_;
  const collectives::Selection unforced_;  // for tensors of GPUs
  SharedState& shared_;
  BufferPool pool_;
  DeviceWatcher watcher_;
  const DeviceLane::Context device_context_;
  std::map<SetId, Lane> lanes_;
  std::map<SetId, std::unique_ptr<DeviceLane>> device_lanes_;
  // Of removed sets, until the GPU has done all.
  std::vector<std::unique_ptr<DeviceLane>> ending_;
  std::vector<std::unique_ptr<Operation>> parked_;
  std::vector<std::unique_ptr<DeviceLane>> parked_lanes_;
};

}  // namespace hvdlite::engine
