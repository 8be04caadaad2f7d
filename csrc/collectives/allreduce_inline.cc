// Inline allreduce, for small buffers of ranks that share memory. Each rank writes its whole contribution to shared memory, and
// each rank folds all contributions itself. So it waits once, while allreduce_shm waits twice; but it does p times as many
// additions.
//
// What moves where, three ranks:
//
//                 rank 0                    rank 1                    rank 2
//   put           a0 -> own place           a1 -> own place           a2 -> own place
//   fold          a0 + a1 + a2 -> output    a0 + a1 + a2 -> output    a0 + a1 + a2 -> output
//
// Three kinds of places:
//   prepared  Memory for one payload (SharedChannel::prepared), written before the ranks have agreed on the operation. If all
//             have written theirs when they agree, no rank has to wait any more: all fold (allreduce_inline.h).
//   line      Up to WindowFlags::kInlineBytes: the cache line of the flag that announces the payload (InlineTile).
//   tiles     Larger buffers: one tile after the other, as shared_collective.h draws it, without a reduce step.
//
// Prepared payloads are numbered: payload n is the one that a rank writes when it has folded n payloads before. Each member has
// two places for payloads, and payload n lies in place n & 1.
// - n means the same on all ranks: every rank folds the prepared operations in the order in which they were agreed, and the
//   payload that a member put under n belongs to its next announcement: a member prepares only when it has nothing else
//   announced. (An operation that is withdrawn before it is agreed leaves n as it is. The place is written again later, and no
//   member has read it.)
// - No member overwrites a payload that others still read. The member that writes payload n has folded payload n-1. The
//   operation of payload n-1 was agreed after all members had announced it. Each of them had by then written its own payload
//   n-1, so it had folded payload n-2, which used place n & 1 before.
// - A member that folds sees all payloads: each owner wrote its payload before it announced the operation, and no member reads
//   "complete" before all have announced. Announcing and reading are steps of one agreement
//   (engine/negotiation/agreement.h), whose steps have the same order for all members.
//
// Cost for p ranks and S bytes: each rank loads and stores (p + 3) S bytes, and waits once for the slowest rank. (A prepared
// operation does not wait, because the agreement has waited already.) Bytes sent: none.
//
// In place: a rank's contribution is copied before anything is folded; no other rank touches the output.
//
// All ranks get the same bits because all fold the same contributions in the same order, that of the ranks, wherever an element
// lies: layout-independent, the bits of allreduce_shm and allreduce_direct.
//
// Source: contributions that travel with their flags are common practice for small messages of ranks of one host, such as Open
// MPI's shared-memory collectives; putting them before the ranks have agreed is hvdlite's own.
#include "collectives/allreduce_inline.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/cache_line.h"
#include "base/error.h"
#include "collectives/algorithms.h"
#include "collectives/chunking.h"
#include "collectives/part_cursor.h"
#include "collectives/shared_collective.h"
#include "collectives/tile_reducer.h"

namespace hvdlite::collectives {

namespace {

// Members that can prepare an operation.
constexpr int kMostMembers = 64;

class AllreduceLine final : public SharedCollective {
 public:
  AllreduceLine(Comm comm, const Tuning& tuning, const TileReducer& reducer,
                std::vector<AllreducePart> parts, std::size_t count)
      : SharedCollective(std::move(comm), tuning),
        reducer_(reducer),
        parts_(std::move(parts)),
        count_(count) {}

 private:
  bool step() override {
    const InlineTile tile(channel().tiles());
    if (!published_) return published_ = publish(tile);
    if (!tile.all_arrived(channel())) return false;
    fold(tile);
    tile.done(channel());
    finish(1);
    return true;
  }

  bool publish(const InlineTile& tile) {
    std::byte payload[InlineTile::kBytes];
    PartCursor cursor(parts_, reducer_.result_bytes());
    cursor.walk({0, count_}, [&](const void* input, void*, std::size_t offset, std::size_t n) {
      reducer_.contribute(payload + offset * reducer_.contribution_bytes(), input, n);
    });
    if (!tile.publish(channel(), payload, count_ * reducer_.contribution_bytes())) return false;
    ring_others();
    return true;
  }

  void fold(const InlineTile& tile) {
    std::vector<const void*> inputs(static_cast<std::size_t>(size()));
    PartCursor cursor(parts_, reducer_.result_bytes());
    cursor.walk({0, count_}, [&](const void*, void* output, std::size_t offset, std::size_t n) {
      if (output == nullptr) return;
      for (int member = 0; member < size(); ++member) {
        inputs[static_cast<std::size_t>(member)] =
            tile.payload(channel(), member) + offset * reducer_.contribution_bytes();
      }
      reducer_.fold(&output, 1, inputs.data(), size(), n);
    });
  }

  TileReducer reducer_;
  std::vector<AllreducePart> parts_;
  std::size_t count_;
  bool published_ = false;
};

class AllreduceWholeTiles final : public TilePipeline {
 public:
  // The most elements of a tile.
  AllreduceWholeTiles(Comm comm, const Tuning& tuning, const TileReducer& reducer,
                      std::vector<AllreducePart> parts, std::size_t count, std::size_t tile)
      : TilePipeline(std::move(comm), tuning, /*reduces=*/false),
        reducer_(reducer),
        parts_(std::move(parts)),
        count_(count),
        tile_(tile),
        inputs_(static_cast<std::size_t>(size())),
        filling_(parts_, reducer.result_bytes()),
        draining_(parts_, reducer.result_bytes()) {
    if (count == 0) return;
    set_tiles(pieces_in(count, tile), std::min(count, tile) * reducer.contribution_bytes());
  }

 private:
  Range range(std::size_t tile) const {
    return {tile * tile_, std::min(tile_, count_ - tile * tile_)};
  }
  std::byte* contribution(int member, std::size_t tile, std::size_t offset) const {
    return buffer(member, tile) + offset * reducer_.contribution_bytes();
  }

  void fill(std::size_t tile) override {
    filling_.walk(range(tile), [&](const void* input, void*, std::size_t offset, std::size_t n) {
      reducer_.contribute(contribution(me(), tile, offset), input, n, puts_past());
    });
  }

  void drain(std::size_t tile) override {
    draining_.walk(range(tile), [&](const void*, void* output, std::size_t offset, std::size_t n) {
      if (output == nullptr) return;
      for (int member = 0; member < size(); ++member) {
        inputs_[static_cast<std::size_t>(member)] = contribution(member, tile, offset);
      }
      reducer_.fold(&output, 1, inputs_.data(), size(), n);
    });
  }

  TileReducer reducer_;
  std::vector<AllreducePart> parts_;
  std::size_t count_;
  std::size_t tile_;
  std::vector<const void*> inputs_;  // of one fold, by member
  PartCursor filling_;
  PartCursor draining_;
};

void fold(const void* const* inputs, int members, const AllreducePart& part,
          const Reduction& reduction, kernels::Isa isa) {
  void* const output = part.output;
  kernels::reduce_kernels(reduction.dtype, reduction.op, isa)
      .fold(&output, 1, inputs, members, part.count, reduction.prescale, reduction.postscale,
            reduction.divisor);
}

}  // namespace

void prepare_inline(SharedChannel& channel, const void* input, std::size_t bytes) {
  HVD_CHECK(bytes <= channel.prepared_bytes());
  std::memcpy(channel.prepared(channel.index(), channel.folded()), input, bytes);
}

void reduce_prepared(SharedChannel& channel, const AllreducePart& part, const Reduction& reduction,
                     kernels::Isa isa) {
  const int members = channel.size();
  HVD_CHECK(members <= kMostMembers &&
            part.count * base::size_of(reduction.dtype) <= channel.prepared_bytes());
  std::array<const void*, kMostMembers> inputs = {};
  for (int member = 0; member < members; ++member) {
    inputs[static_cast<std::size_t>(member)] = channel.prepared(member, channel.folded());
  }
  fold(inputs.data(), members, part, reduction, isa);
  channel.count_folded();
}

void reduce_payloads(const std::vector<std::vector<std::byte>>& payloads, const AllreducePart& part,
                     const Reduction& reduction, kernels::Isa isa) {
  HVD_CHECK(payloads.size() <= kMostMembers);
  std::array<const void*, kMostMembers> inputs = {};
  for (std::size_t member = 0; member < payloads.size(); ++member) {
    HVD_CHECK(payloads[member].size() == part.count * base::size_of(reduction.dtype));
    inputs[member] = payloads[member].data();
  }
  fold(inputs.data(), static_cast<int>(payloads.size()), part, reduction, isa);
}

std::unique_ptr<Collective> allreduce_inline(Comm comm, AllreduceArgs args, const Tuning& tuning) {
  HVD_CHECK(comm.shared() != nullptr);
  const TileReducer reducer(args.reduction, tuning.isa);
  const std::size_t element = reducer.contribution_bytes();
  const std::size_t count = args.count();
  std::vector<AllreducePart> parts = merged_parts(args.parts, reducer.result_bytes());
  if (count > 0 && count * element <= InlineTile::kBytes) {
    return std::make_unique<AllreduceLine>(std::move(comm), tuning, reducer, std::move(parts),
                                           count);
  }
  const std::size_t bytes = pipelined_tile(count * element, comm.shared()->tile_bytes());
  const std::size_t tile = bytes / base::kCacheLine * base::kCacheLine / element;
  return std::make_unique<AllreduceWholeTiles>(std::move(comm), tuning, reducer, std::move(parts),
                                               count, tile);
}

}  // namespace hvdlite::collectives
