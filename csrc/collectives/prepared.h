// Prepared operations: each member puts its input where the other members will look for it, before they agree on the operation.
// If all members have done so by the agreement, each member makes its own result from all inputs, and nobody waits any more.
// One case needs a second exchange: an allreduce in which a member gets only its part of the other inputs (allreduce_of_parts).
// The inputs lie in the memory that the members share, or came in the messages by which the members agree. prepared.cc explains
// why this is correct.
// Thread: the holder of the progress token. Owns: nothing. Blocks: no. Throws: Error(Unsupported) for an element type and op
// that no kernel serves, Error(Internal) for an input that is too short or too long.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "collectives/collective.h"
#include "collectives/host_map.h"

namespace hvdlite::collectives {

// Puts this member's input, which has at most channel.prepared_bytes(), where the others will look for it.
void prepare(SharedChannel& channel, std::span<const std::byte> input);

// What this member needs of the inputs of all members of a prepared operation. It borrows the inputs.
class PreparedInputs {
 public:
  // The inputs lie in the members' shared memory. They stay as they are until this member has called channel.count_prepared()
  // and then announces its next operation.
  explicit PreparedInputs(const SharedChannel& channel) : channel_(&channel) {}
  // From messages, by member: each payload is the part that this member needs.
  explicit PreparedInputs(const std::vector<std::vector<std::byte>>& payloads)
      : payloads_(&payloads) {}

  int members() const;
  // The part of a member's input that this member needs. offset: of the part's first byte in the input; bytes: of the part.
  const std::byte* part(int member, std::size_t offset, std::size_t bytes) const;

 private:
  const SharedChannel* channel_ = nullptr;  // null: the inputs are payloads_
  const std::vector<std::vector<std::byte>>* payloads_ = nullptr;
};

// The number of elements in each member's part of an allreduce. A member reduces its part for all members.
std::vector<std::size_t> allreduce_parts(std::size_t count, int members, std::size_t element_bytes);

// Each ..._prepared makes this member's result of a prepared operation; rank: of this member. The arguments are those of
// start_... (select.h), but the input in them is ignored, because this member's input is one of the prepared inputs. hosts: the
// members' hosts, if there are several and the members of each host share memory; otherwise null. With several hosts the result
// has the bits of allreduce_hierarchical, if adds_in_order() holds.
void allreduce_prepared(const PreparedInputs& inputs, const HostMap* hosts,
                        const AllreducePart& part, const Reduction& reduction, kernels::Isa isa);
// For an allreduce in which each member got only its part (allreduce_parts) of the others' inputs. The call reduces that part
// at once and ignores part.input. The returned collective gathers the reduced parts of all members and does not use `inputs`.
std::unique_ptr<Collective> allreduce_of_parts(Comm comm, const PreparedInputs& inputs,
                                               const AllreducePart& part,
                                               const Reduction& reduction, const Tuning& tuning);
void reducescatter_prepared(const PreparedInputs& inputs, int rank, const ReducescatterArgs& args,
                            kernels::Isa isa);
void allgatherv_prepared(const PreparedInputs& inputs, const AllgathervArgs& args);
void broadcast_prepared(const PreparedInputs& inputs, const BroadcastArgs& args);
// All members have the same send_bytes.
void alltoallv_prepared(const PreparedInputs& inputs, int rank, const AlltoallvArgs& args);

}  // namespace hvdlite::collectives
