// One FusedOp under way, and what the members of its process set share for it: regions of their host's window. How it is done
// depends on where its tensors lie: HostOperation (host_operation.h), NcclOperation and StagedOperation (nccl_operation.h,
// staged_operation.h).
// Thread: the holder of the progress token. Owns: the channels, whose end tells the regions' next users; of an operation what moves
// the data, buffers, and the outputs it makes until they are handed to the completions. Blocks: never. Throws: what Transport, the
// kernels and the GPU's driver throw; then it must be parked (kept), as somebody may still touch its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/collective.h"
#include "collectives/comm.h"
#include "collectives/host_map.h"
#include "collectives/shared_channel.h"
#include "engine/model/entry.h"
#include "engine/negotiation/regions.h"
#include "transport/transport.h"

namespace hvdlite::engine {

// As collectives/comm.h has it; null where there is nothing, or nobody to share with.
struct SharedRegions {
  std::shared_ptr<collectives::SharedChannel> channel;
  std::shared_ptr<collectives::SharedChannel> second_channel;
  std::shared_ptr<const collectives::HostMap> hosts;

  collectives::Sharing sharing() const {
    return {channel.get(), second_channel.get(), hosts.get()};
  }
};

SharedRegions share(transport::Transport& transport, const ProcessSet& set,
                    const Regions::Grant& regions);

// As operations see it.
struct SharingSet : ProcessSet {
  SharedRegions shared;
};
using SharingSetPtr = std::shared_ptr<const SharingSet>;

// A lane has so many in flight: enough to fill the gaps of one with another, few enough to bound memory.
inline constexpr std::size_t kMaxRunning = 16;
inline constexpr std::size_t kMaxRunningBytes = std::size_t{256} << 20;

// The tag of an operation's messages. Two of a set that are in flight together have different ones.
std::uint32_t tag_of(const transport::Transport& transport, SetId set, std::uint32_t operation);
// That of all that ranks send one another, in the order in which both start it: no operation has it.
std::uint32_t point_to_point_tag(const transport::Transport& transport);

// How ranks combine what they gave for this request; an Average divides by `divisor`.
collectives::Reduction reduction_of(const Request& request, std::int64_t divisor);
// The same of what `ranks` members agreed on.
collectives::Reduction reduction_of(const Agreed& agreed, int ranks);

class Operation {
 public:
  // entries[i] is this rank's part in fused.parts[i]; one without a request means that this rank has joined.
  Operation(FusedOp fused, std::vector<Entry> entries);
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  // Apart from the constructor so that the entries are not lost if it throws.
  virtual void start() = 0;
  // True when finished; the entries' completions then hold the results but are not marked done.
  virtual bool advance() = 0;
  // Has it begun all of its collectives? Members take turns in shared memory in the order in which collectives begin, which has to
  // be the same on all of them: no later operation may start before.
  virtual bool has_begun() const { return true; }
  // It has failed: whatever may still write to its memory may do so for good.
  virtual void abandon() = 0;

  std::vector<Entry>& entries() { return entries_; }
  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t bytes() const { return bytes_; }
  const Request& first_request() const { return fused_.first(); }

 protected:
  const FusedOp& fused() const { return fused_; }
  // A value that nobody has needs no data: the handle tells so by contributors == 0.
  bool has_no_value() const;

 private:
  FusedOp fused_;
  std::vector<Entry> entries_;
  std::size_t bytes_ = 0;
};

}  // namespace hvdlite::engine
