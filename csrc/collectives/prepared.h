// Prepared operations: each member puts its input where the other members will look for it, before they agree on the operation.
// If all have done so when they agree, each member makes its own result from the inputs of all, and nobody waits any more. Only
// a larger allreduce needs a second exchange (allreduce_of_parts). The inputs lie in the memory that the members share, or came
// in the messages by which the members agree. prepared.cc explains why this is correct.
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

// What this member needs of the inputs of all members of a prepared operation. Borrows them.
class PreparedInputs {
 public:
  // In the members' shared memory. They stay as they are until this member announces its next operation after
  // channel.count_prepared().
  explicit PreparedInputs(const SharedChannel& channel) : channel_(&channel) {}
  // From messages, by member: each payload is the part that this member needs.
  explicit PreparedInputs(const std::vector<std::vector<std::byte>>& payloads)
      : payloads_(&payloads) {}

  int members() const;
  // The part that this member needs of a member's input: the offset of its first byte, and its number of bytes.
  const std::byte* part(int member, std::size_t offset, std::size_t bytes) const;

 private:
  const SharedChannel* channel_ = nullptr;  // null: the inputs are payloads_
  const std::vector<std::vector<std::byte>>* payloads_ = nullptr;
};

// The elements of each member's part of an allreduce, which that member reduces for all.
std::vector<std::size_t> allreduce_parts(std::size_t count, int members, std::size_t element_bytes);

// The collectives, for the member `rank` of a prepared operation. They take the arguments of start_... (select.h) but ignore
// the member's own input, which is one of the prepared ones.
// hosts: null unless the members are on several hosts and those of each host share memory. Then the result has the bits of
// allreduce_hierarchical, if adds_in_order() holds.
void allreduce_prepared(const PreparedInputs& inputs, const HostMap* hosts,
                        const AllreducePart& part, const Reduction& reduction, kernels::Isa isa);
// An allreduce of which each member got only its part (allreduce_parts) of the others' inputs. Reduces that part at once; the
// collective then gathers the parts of all members. It ignores part.input, and no longer uses `inputs`.
std::unique_ptr<Collective> allreduce_of_parts(Comm comm, const PreparedInputs& inputs,
                                               const AllreducePart& part,
                                               const Reduction& reduction, const Tuning& tuning);
void reducescatter_prepared(const PreparedInputs& inputs, int rank, const ReducescatterArgs& args,
                            kernels::Isa isa);
void allgatherv_prepared(const PreparedInputs& inputs, const AllgathervArgs& args);
void broadcast_prepared(const PreparedInputs& inputs, const BroadcastArgs& args);
// All members send with the same split.
void alltoallv_prepared(const PreparedInputs& inputs, int rank, const AlltoallvArgs& args);

}  // namespace hvdlite::collectives
