// An Operation is one FusedOp that runs. Its class depends on where the tensors lie and how they travel: HostOperation
// (host_operation.h), NcclOperation (nccl_operation.h), StagedOperation (staged_operation.h). SharedRegions are the regions of
// the host's window through which the members of a process set exchange data.
// Thread: the holder of the progress token. Owns: SharedRegions owns the channels to the regions; an Operation owns its
// collective and its buffers. A later set can get the regions of a removed set. The later set's members on a host use these
// regions only after the removed set's members on this host have destroyed their channels. Blocks: only where OutputCache or a
// GPU's buffers block (device/buffers.h). Throws: what Transport, the kernels, the GPU's driver and NCCL throw. After an
// exception the owner must retain the operation, because the transport may still touch the operation's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/collective.h"
#include "collectives/comm.h"
#include "collectives/host_map.h"
#include "collectives/select.h"
#include "collectives/shared_channel.h"
#include "engine/execution/extents.h"
#include "engine/model/entry.h"
#include "engine/negotiation/regions.h"
#include "transport/transport.h"

namespace hvdlite::engine {

// Owns the objects to which a Sharing points. Sharing (collectives/comm.h) says when each is null.
struct SharedRegions {
  std::shared_ptr<collectives::SharedChannel> channel;
  std::shared_ptr<collectives::SharedChannel> second_channel;
  std::shared_ptr<const collectives::HostMap> hosts;

  collectives::Sharing sharing() const {
    return {channel.get(), second_channel.get(), hosts.get()};
  }
};

// Makes the channels to the regions that the set was granted.
SharedRegions share(transport::Transport& transport, const ProcessSet& set,
                    const Regions::Grant& regions);

// A process set with its shared memory, as operations use it.
struct SharingSet : ProcessSet {
  SharedRegions shared;

  collectives::Comm comm(transport::Transport& transport, std::uint32_t tag) const {
    return {transport, members, index, tag, id, shared.sharing()};
  }
};
using SharingSetPtr = std::shared_ptr<const SharingSet>;

// While operations run in a lane, the lane starts another one only if the running ones are fewer than kMaxRunning and have
// fewer than kMaxRunningBytes bytes in all. The limits are high enough that other operations move data while one waits for
// other ranks. Higher limits would take too much memory.
inline constexpr std::size_t kMaxRunning = 16;
inline constexpr std::size_t kMaxRunningBytes = std::size_t{256} << 20;

// Throws Error(Unsupported) if the transport's tags have room for fewer than 4 * kMaxRunning operations of a set.
void check_tags(const transport::Transport& transport);

// The tag of an operation's messages. operation: the operation's number in its set (Execution::Set::next_operation). The tags
// of a set repeat after operation_limit() (operation.cc) operations of the set. So two operations of a set have different tags
// if their numbers differ by less than operation_limit().
std::uint32_t tag_of(const transport::Transport& transport, SetId set, std::uint32_t operation);
// The tag of all payloads of sends and receives; no Operation has this tag. One tag is enough, because a sender and its
// receiver start the payloads between them in the same order.
std::uint32_t point_to_point_tag(const transport::Transport& transport);

// How ranks combine their values for this request. An Average divides by `divisor`.
collectives::Reduction reduction_of(const Request& request, std::int64_t divisor);
// How the members that agreed on an operation combine their values. ranks: the number of members.
collectives::Reduction reduction_of(const AgreedOperation& agreed, int ranks);

// A FusedOp and this rank's entries in it. A QueuedOperation waits in its lane until the lane starts it as an Operation.
struct QueuedOperation {
  FusedOp fused;
  // entries[i] is this rank's entry of fused.parts[i]. An entry without a request means that this rank has joined.
  std::vector<Entry> entries;
  std::uint32_t tag = 0;
  // Only a prepared allreduce has payloads. payloads[i] comes from member i: that member's whole input, or only those of its
  // elements that this rank reduces.
  std::vector<std::vector<std::byte>> payloads{};
};

class Operation {
 public:
  explicit Operation(QueuedOperation what);
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  // The constructor does not start the operation, because an exception in the constructor would lose the entries. If start()
  // throws, the operation still has them.
  virtual void start() = 0;
  // Returns true when finished. At that moment the entries' completions hold the results, but the owner has yet to mark the
  // completions done.
  virtual bool advance() = 0;
  // Has the operation begun all its collectives? Collectives use the shared memory one after the other, in the order in which
  // they begin, and all members need the same order. So the next operation does not start before has_begun() is true.
  virtual bool has_begun() const { return true; }
  // Called when the operation has failed. Makes sure that the operation's memory is not freed while the transport or a GPU may
  // still write to it. Afterwards the owner retains the operation.
  virtual void abandon() = 0;

  const std::vector<Entry>& entries() const { return what_.entries; }
  std::size_t bytes() const { return bytes_; }
  const Request& first_request() const { return what_.fused.first(); }

 protected:
  const FusedOp& fused() const { return what_.fused; }
  std::vector<std::vector<std::byte>>& payloads() { return what_.payloads; }
  // Starts an allgather, alltoall or reducescatter of host memory.
  std::unique_ptr<collectives::Collective> start_with_rows(
      const Extents& extents, const void* input, void* output, const collectives::Comm& comm,
      const collectives::Selection& selection) const;
  // True for an allreduce for which no rank has a value. Such an allreduce moves no data, and its result has
  // contributors == 0.
  bool has_no_value() const;

 private:
  QueuedOperation what_;
  std::size_t bytes_ = 0;
};

}  // namespace hvdlite::engine
