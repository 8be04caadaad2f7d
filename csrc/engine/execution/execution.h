// Runs what was agreed: the memory that each process set shares, and its operations, in one order, several in flight at once; and
// what two ranks send one another.
// Thread: the holder of the progress token. Owns: what the sets share, all operations, and the retained ones of a failed engine.
// Blocks: never, but close, for a moment. Throws: what operation.h says.
//
// Deadlock-free: the oldest unfinished operation of a lane is always in flight on every member that knows of it, and
// nothing in one lane waits for another. A process set has a lane for host memory and, once it has done anything on a GPU, one
// for that (device_lane.h).
//
// Small allreduces are prepared (collectives/allreduce_inline.h): before the members have agreed, each puts its payload where the
// others will look for it. If all have, the operation needs no further exchange, and comes beside the lanes: it is over as soon as
// it is agreed.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/execution/gpu/device_lane.h"
#include "engine/execution/host/host_operation.h"
#include "engine/execution/transfers.h"
#include "engine/intake/shared_state.h"
#include "engine/negotiation/agreement.h"
#include "transport/transport.h"

namespace hvdlite::engine {

class Execution {
 public:
  Execution(transport::Transport& transport, collectives::Selection selection, SharedState& shared);
  ~Execution();

  // --- process sets ---
  // Gives the port through which the set's members agree, null if they share no memory for it.
  std::unique_ptr<Agreement> add_set(const ProcessSet& set, const Regions::Grant& regions);
  void share_staging(SetId set, const Regions::Grant& regions);
  // No operation of it follows.
  void remove_set(SetId set);
  // Do all members share memory?
  bool share_memory(SetId set) const;

  // --- operations ---
  // True if this rank's payload has been put where the others will look for it.
  bool prepare(SetId set, const Entry& entry);
  // All members have.
  void execute_prepared(SetId set, Entry& entry);
  void execute(SetId set, FusedOp fused, std::vector<Entry> entries);

  // What is sent to another rank, or comes from it, as Transfers has it.
  void start_send(Entry entry, int to) { transfers_.send(std::move(entry), to); }
  void start_receive(Entry entry, int from) { transfers_.receive(std::move(entry), from); }

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
      for (const QueuedOperation& waiting : lane.waiting)
        std::ranges::for_each(waiting.entries, visit);
      for (const auto& operation : lane.running) std::ranges::for_each(operation->entries(), visit);
    }
    for (const auto& [id, lane] : device_lanes_) lane->for_each(visit);
    transfers_.for_each(visit);
  }

  // --- endings ---
  // Fails everything not finished and keeps its memory for good. lost: others cannot be relied on any more.
  void retain_all(const base::Status& why, bool lost);
  // The transport is closed; memory_is_free: nothing touches retained operations any more.
  void close(bool memory_is_free);

 private:
  struct Set {
    SharingSetPtr host;  // for tensors in host memory
    // For GPUs' tensors that go through host memory: how fast they come must not decide whose turn it is in the other. Only the
    // set of all ranks shares anything there, from its first operation on GPU memory on.
    SharingSetPtr gpu;
    std::uint32_t next_operation = 0;  // the same on all members: part of the message tag
  };
  // The operations of one process set.
  struct Lane {
    SharingSetPtr set;
    std::deque<QueuedOperation> waiting;
    std::deque<std::unique_ptr<Operation>> running;
    std::size_t running_bytes = 0;
  };
  bool may_prepare(const collectives::SharedChannel& channel, const Request& request) const;
  std::uint32_t next_tag(Set& set) const;
  DeviceLane& device_lane(Set& set, const std::vector<Entry>& entries);
  bool start(Lane& lane);
  bool step(Lane& lane);
  bool advance_devices();

  transport::Transport& transport_;
  const collectives::Selection selection_;
  const collectives::Selection unforced_;  // for tensors of GPUs
  SharedState& shared_;
  FusionBufferPool pool_;
  DeviceWatcher watcher_;
  const DeviceLane::Context device_context_;
  std::map<SetId, Set> sets_;
  std::map<SetId, Lane> lanes_;
  std::map<SetId, std::unique_ptr<DeviceLane>> device_lanes_;
  // Of removed sets, until the GPU has done all.
  std::vector<std::unique_ptr<DeviceLane>> ending_;
  std::vector<std::unique_ptr<Operation>> retained_;
  std::vector<std::unique_ptr<DeviceLane>> retained_lanes_;
  Transfers transfers_;
};

}  // namespace hvdlite::engine
