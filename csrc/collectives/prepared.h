// Prepared operations: each member puts its whole input where the other members will look for it, before they agree on the
// operation. If all have done so when they agree, nobody waits any more: each member makes its own result from the inputs of all.
// The inputs lie in the memory that the members share, or came in the messages by which the members agree. prepared.cc explains why
// this is correct.
// Thread: the holder of the progress token. Owns: nothing. Blocks: no. Throws: Error(Unsupported) for an element type and op
// that no kernel serves, Error(Internal) for an input that is too short.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/collective.h"

namespace hvdlite::collectives {

// Puts this member's input, which has at most channel.prepared_bytes(), where the others will look for it.
void prepare(SharedChannel& channel, std::span<const std::byte> input);

// The inputs of all members of a prepared operation. Borrows them.
class PreparedInputs {
 public:
  // In the members' shared memory. They stay as they are until this member announces its next operation after
  // channel.count_prepared().
  explicit PreparedInputs(const SharedChannel& channel) : channel_(&channel) {}
  // From messages, by member.
  explicit PreparedInputs(const std::vector<std::vector<std::byte>>& payloads)
      : payloads_(&payloads) {}

  int members() const;
  // The input of a member, of at least this many bytes.
  const std::byte* of(int member, std::size_t bytes) const;

 private:
  const SharedChannel* channel_ = nullptr;  // null: the inputs are payloads_
  const std::vector<std::vector<std::byte>>* payloads_ = nullptr;
};

// The collectives, for the member `rank` of a prepared operation. They take the arguments of start_... (select.h) but ignore the
// member's own input, which is one of the prepared ones.
void allreduce_prepared(const PreparedInputs& inputs, const AllreducePart& part,
                        const Reduction& reduction, kernels::Isa isa);
void reducescatter_prepared(const PreparedInputs& inputs, int rank, const ReducescatterArgs& args,
                            kernels::Isa isa);
void allgatherv_prepared(const PreparedInputs& inputs, const AllgathervArgs& args);
void broadcast_prepared(const PreparedInputs& inputs, const BroadcastArgs& args);
// All members send with the same split.
void alltoallv_prepared(const PreparedInputs& inputs, int rank, const AlltoallvArgs& args);

}  // namespace hvdlite::collectives
