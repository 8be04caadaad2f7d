// Starts the agreed operations of each process set in their order, advances several of them at once, and keeps the memory that
// the members of the set share. Also advances the transfers of sends and receives (transfers.h).
// Thread: the holder of the progress token. Owns: the shared memory of the sets, and all operations, retained ones too. Blocks:
// as device_lane.h and transfers.h say; close() also as DeviceWatcher::stop(). Throws: as operation.h says.
//
// A process set has one lane for its operations on host memory and, from its first GPU operation on, a second lane for its
// operations on GPU memory (device_lane.h). Lanes cannot deadlock, for two reasons. No lane waits for another. And a member
// starts an agreed operation at the latest when all older operations of the lane have ended on this member (on GPU memory: and
// the lane's link has come up).
//
// Small operations are prepared (collectives/prepared.h): before the members agree on such an operation, each member puts its
// input where the other members will look for it, or into the message that announces the operation. If all members have
// prepared the operation, it usually ends as soon as it is agreed, without waiting in a lane. Two kinds of prepared operations
// pass through the lane nevertheless. One is an allreduce in which each member reduces some of the elements for all members
// (Preparation::kParts): afterwards the members exchange the reduced elements. The other is an allreduce of several tensors,
// which needs a fusion buffer.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
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
  // Adds a set that has been granted these regions. Returns the object through which the members agree in a ledger in shared
  // memory, or null if they cannot share a ledger.
  std::unique_ptr<Agreement> add_set(const ProcessSet& set, const Regions::Grant& regions);
  // As Effects::share_staging. Call it before the set's first operation on GPU memory: that operation makes the GPU lane, and a
  // lane keeps the regions that the set has at that time.
  void share_staging(SetId set, const Regions::Grant& regions);
  // Call it when all operations of this set have ended.
  void remove_set(SetId set);
  // Do all members of the set share memory with each other?
  bool share_memory(SetId set) const;

  // --- operations ---
  // As Effects::prepare. If the members share a ledger, prepare() also copies this rank's input to the place where the other
  // members will look for it.
  std::optional<InlinePayload> prepare(SetId set, std::span<const Entry> unit);
  // As Effects::execute_prepared. Call it only if all members have prepared the operation.
  void execute_prepared(SetId set, std::vector<Entry>& unit,
                        std::vector<std::vector<std::byte>> payloads);
  void execute(SetId set, FusedOp fused, std::vector<Entry> entries);

  // The transfers of sends and receives. The caller starts a transfer, and Execution advances and ends it.
  Transfers& transfers() { return transfers_; }

  // Starts and advances operations. Returns true if anything happened.
  bool advance();
  bool idle() const;
  bool idle(SetId set) const;
  // Have the GPUs done all work of the operations and transfers that have ended?
  bool settled() const;
  // Calls visit(const Entry&) for each entry that has not ended. An entry without a request belongs to no caller: this rank has
  // joined.
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
  // Fails all unfinished operations and retains their memory. Aborts each NCCL communicator that has work. If the engine has
  // failed, retain_all() also aborts the communicators without work, because other ranks may be gone, and an orderly end could
  // wait for those ranks.
  void retain_all(const base::Status& why);
  // Call it after the transport has been closed. memory_is_free: true if nothing touches the memory of retained operations any
  // more.
  void close(bool memory_is_free);

 private:
  // One process set in two forms: for tensors in host memory, and for tensors on GPUs. Each form has its own regions of the
  // window, if any.
  struct Set {
    SharingSetPtr host;  // for tensors in host memory
    // For GPU tensors that go through host memory. Its regions are separate: in common regions, operations on host tensors
    // would wait for slower operations on GPU tensors. Only the set of all ranks gets such regions, at its first operation on
    // GPU memory.
    SharingSetPtr gpu;
    std::uint32_t next_operation = 0;  // the same on all members; part of the message tag
  };
  // The operations of one process set on host memory.
  struct Lane {
    SharingSetPtr set;
    std::deque<QueuedOperation> waiting;
    std::deque<std::unique_ptr<Operation>> running;
    std::size_t running_bytes = 0;
  };
  collectives::Preparation preparation_of(const SharingSet& set, std::span<const Entry> unit) const;
  void enqueue(Set& set, QueuedOperation operation);
  std::uint32_t next_tag(Set& set) const;
  DeviceLane& device_lane(Set& set, const std::vector<Entry>& entries);
  bool start(Lane& lane);
  bool step(Lane& lane);
  bool advance_devices();

  transport::Transport& transport_;
  const collectives::Selection selection_;
  const collectives::Selection unforced_;  // for GPU tensors
  SharedState& shared_;
  FusionBufferPool pool_;
  DeviceWatcher watcher_;
  const DeviceContext device_context_;
  std::map<SetId, Set> sets_;
  std::map<SetId, Lane> lanes_;
  std::map<SetId, std::unique_ptr<DeviceLane>> device_lanes_;
  // Lanes of removed sets, until the GPU has done their work.
  std::vector<std::unique_ptr<DeviceLane>> ending_;
  std::vector<std::unique_ptr<Operation>> retained_;
  std::vector<std::unique_ptr<DeviceLane>> retained_lanes_;
  Transfers transfers_;
};

}  // namespace hvdlite::engine
