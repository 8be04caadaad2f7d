// What moves where, three ranks that share memory:
//
//                  rank 0                    rank 1                    rank 2
//   prepare        a0 -> own place           a1 -> own place           a2 -> own place
//   (agreement)
//   result         from a0, a1, a2           from a0, a1, a2           from a0, a1, a2
//
// In shared memory, prepared inputs are numbered: input n is the one that a rank writes when it has taken part in n prepared
// operations. Each member has two places for inputs, and input n lies in place n & 1.
// - n means the same on all ranks. Every rank runs the prepared operations in the order in which they were agreed. A member
//   prepares an input only when it has announced nothing else, so input n belongs to the member's next announcement. (An
//   operation that is withdrawn before it is agreed leaves n as it is. The place is written again later, and no member has read
//   it.)
// - No member overwrites an input that others still read. The member that writes input n has made the result of operation n-1.
//   That operation was agreed after all members had announced it. Each of them had by then written its own input n-1, so it
//   had made the result of operation n-2, which used place n & 1 before. A member whose input is not needed (a broadcast's
//   receiver) writes nothing, but it counts the operation, too.
// - A member sees all inputs: each member wrote its input before it announced the operation, and no member sees the operation
//   as agreed before all have announced it. Announcing and seeing are steps of one agreement (engine/negotiation/agreement.h),
//   whose steps have the same order for all members.
//
// In messages, a member sends each other member what this receiver needs of the sender's input: all of it (allgather, and
// broadcast from the root), the receiver's part (alltoall, reducescatter), or in an allreduce
//   - all of it, if it is small: then each rank makes the whole result; or
//   - the part that the receiver reduces for all. After the agreement, each rank sends its reduced part to all others:
//
//                  rank 0                    rank 1                    rank 2
//   announce       b0 -> 1, c0 -> 2          a1 -> 0, c1 -> 2          a2 -> 0, b2 -> 1
//   (agreement)
//   reduce         a0 + a1 + a2              b0 + b1 + b2              c0 + c1 + c2
//   gather         a -> 1, 2                 b -> 0, 2                 c -> 0, 1
//
// Cost for p ranks and S bytes of input: each rank loads and stores at most (2p + 2) S bytes in an allgather, and (p + 3) S in
// the other operations. (An allreduce whose ranks share hosts also stores each host's sum.) A rank does not wait any more,
// because it has waited for the agreement. Bytes sent by a rank: none in shared memory; (p-1) S if the others need all of its
// input; (p-1)/p S if they need parts. The allreduce of parts waits for one more message, and sends 2(p-1)/p S bytes in all, as
// allreduce_direct does.
//
// In place: a rank's input is copied before anything is written to its output.
//
// All ranks get the same bits, because an element is reduced from the same inputs in the order of the ranks, wherever it lies.
// So the reductions are layout-independent, and give the bits of allreduce_shm and allreduce_direct. If ranks share hosts, an
// allreduce adds up each host's inputs first, and then the hosts' sums: the bits of allreduce_hierarchical.
//
// Source: it is common practice to write a small message next to its flag in shared memory; Open MPI's shared-memory
// collectives do so. That ranks write it before they have agreed is hvdlite's own idea. The allreduce of parts is
// allreduce_direct, but the announcements carry what its first exchange would send.
#include "collectives/prepared.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "collectives/algorithms.h"
#include "collectives/chunking.h"
#include "collectives/shared_channel.h"
#include "collectives/tile_reducer.h"

namespace hvdlite::collectives {

namespace {

// The most members of a set that prepares operations: those that one ledger serves (engine/negotiation/ledger.h).
constexpr int kMostMembers = 64;

void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// Copies sizes[m] bytes of each member m's input, from `offset` on, one after the other to the output.
void gather(const PreparedInputs& inputs, std::size_t offset, const std::vector<std::size_t>& sizes,
            std::byte* output) {
  for (std::size_t member = 0; member < sizes.size(); ++member) {
    copy(output, inputs.part(static_cast<int>(member), offset, sizes[member]), sizes[member]);
    output += sizes[member];
  }
}

// Reduces `count` elements from element `first` of all inputs.
void fold(const PreparedInputs& inputs, std::size_t first, std::size_t count, void* output,
          const Reduction& reduction, kernels::Isa isa) {
  const std::size_t element = base::size_of(reduction.dtype);
  HVD_CHECK(inputs.members() <= kMostMembers);
  std::array<const void*, kMostMembers> places = {};
  for (int member = 0; member < inputs.members(); ++member) {
    places[static_cast<std::size_t>(member)] =
        inputs.part(member, first * element, count * element);
  }
  kernels::reduce_kernels(reduction.dtype, reduction.op, isa)
      .fold(&output, 1, places.data(), inputs.members(), count, reduction.prescale,
            reduction.postscale, reduction.divisor);
}

}  // namespace

void prepare(SharedChannel& channel, std::span<const std::byte> input) {
  HVD_CHECK(input.size() <= channel.prepared_bytes());
  copy(channel.prepared(channel.index(), channel.prepared_count()), input.data(), input.size());
}

int PreparedInputs::members() const {
  return channel_ != nullptr ? channel_->size() : static_cast<int>(payloads_->size());
}

const std::byte* PreparedInputs::part(int member, std::size_t offset, std::size_t bytes) const {
  if (channel_ != nullptr) {
    HVD_CHECK(offset + bytes <= channel_->prepared_bytes());
    return channel_->prepared(member, channel_->prepared_count()) + offset;
  }
  const std::vector<std::byte>& payload = (*payloads_)[static_cast<std::size_t>(member)];
  HVD_CHECK(bytes <= payload.size());
  return payload.data();
}

void allreduce_prepared(const PreparedInputs& inputs, const HostMap* hosts,
                        const AllreducePart& part, const Reduction& reduction, kernels::Isa isa) {
  if (hosts == nullptr) return fold(inputs, 0, part.count, part.output, reduction, isa);
  const TileReducer reducer(reduction, isa);
  const std::size_t input_bytes = part.count * base::size_of(reduction.dtype);
  std::vector<std::byte> sum(part.count * reducer.partial_bytes()), total;
  const kernels::ReduceKernels& kernels =
      kernels::reduce_kernels(reduction.dtype, reduction.op, isa);
  for (int host = 0; host < hosts->hosts(); ++host) {
    std::vector<const void*> places;
    std::vector<std::vector<std::byte>> scaled;
    for (const int member : hosts->members_on(host)) {
      const std::byte* place = inputs.part(member, 0, input_bytes);
      if (reducer.scaled()) {
        std::byte* const copy =
            scaled.emplace_back(part.count * reducer.contribution_bytes()).data();
        reducer.contribute(copy, place, part.count);
        place = copy;
      }
      places.push_back(place);
    }
    reducer.fold_partial(sum.data(), places.data(), static_cast<int>(places.size()), part.count);
    if (host == 0) {
      total = sum;
    } else {
      kernels.combine(total.data(), total.data(), sum.data(), part.count);
    }
  }
  kernels.store(part.output, total.data(), part.count, reduction.postscale, reduction.divisor);
}

std::vector<std::size_t> allreduce_parts(std::size_t count, int members,
                                         std::size_t element_bytes) {
  const std::size_t grain = alignment_grain(count, members, element_bytes);
  std::vector<std::size_t> parts;
  for (std::size_t member = 0; member < static_cast<std::size_t>(members); ++member) {
    parts.push_back(part_of({0, count}, static_cast<std::size_t>(members), member, grain).count);
  }
  return parts;
}

std::unique_ptr<Collective> allreduce_of_parts(Comm comm, const PreparedInputs& inputs,
                                               const AllreducePart& part,
                                               const Reduction& reduction, const Tuning& tuning) {
  const std::size_t element = base::size_of(reduction.dtype);
  const std::vector<Range> runs = runs_of(allreduce_parts(part.count, comm.size(), element));
  const Range& mine = runs[static_cast<std::size_t>(comm.rank())];
  std::byte* const reduced = static_cast<std::byte*>(part.output) + mine.offset * element;
  fold(inputs, mine.offset, mine.count, reduced, reduction, tuning.isa);
  AllgathervArgs args{reduced, part.output, {}};
  for (const Range& run : runs) args.bytes.push_back(run.count * element);
  return allgatherv_direct(std::move(comm), std::move(args), tuning);
}

void reducescatter_prepared(const PreparedInputs& inputs, int rank, const ReducescatterArgs& args,
                            kernels::Isa isa) {
  const auto me = static_cast<std::size_t>(rank);
  if (args.counts[me] == 0) return;
  fold(inputs, offsets_of(args.counts)[me], args.counts[me], args.output, args.reduction, isa);
}

void allgatherv_prepared(const PreparedInputs& inputs, const AllgathervArgs& args) {
  gather(inputs, 0, args.bytes, static_cast<std::byte*>(args.output));
}

void broadcast_prepared(const PreparedInputs& inputs, const BroadcastArgs& args) {
  copy(static_cast<std::byte*>(args.data), inputs.part(args.root, 0, args.bytes), args.bytes);
}

void alltoallv_prepared(const PreparedInputs& inputs, int rank, const AlltoallvArgs& args) {
  const std::size_t mine = offsets_of(args.send_bytes)[static_cast<std::size_t>(rank)];
  gather(inputs, mine, args.recv_bytes, static_cast<std::byte*>(args.output));
}

}  // namespace hvdlite::collectives
