// Push allreduce: the buffers lie in memory that all members map (an arena), so nothing is packed. Each member owns a slice. It
// adds this slice of all members' buffers in rank order, in registers, and stores the sum into this slice of all members'
// buffers.
//
// What moves where, three members ("b1" is member 1's contribution to slice b; member r owns the r-th slice):
//
//                  buffer of 0       buffer of 1       buffer of 2
//   arrived        a0 b0 c0          a1 b1 c1          a2 b2 c2
//   0 does         a  .  .           a  .  .           a  .  .         a = a0 + a1 + a2
//   1 does         .  b  .           .  b  .           .  b  .
//   2 does         .  .  c           .  .  c           .  .  c
//   reduced        a  b  c           a  b  c           a  b  c         all leave
//
// Cost for p members and S bytes: two exchanges of flags; each member loads S and stores S bytes in all, which is the minimum
// (every contribution is loaded once and every result stored once). A member stores only to lines that it has just loaded, so
// no line is fetched only to be overwritten.
//
// Correct, because no member touches another member's buffer before this other member has arrived or after it has left, and no
// slice is written while another member reads it. The operation counts as one tile, number t (shared_collective.h), which uses
// no tile memory:
// - A member stores arrived = t+1 once its own buffer is complete, and touches buffers only after seeing arrived >= t+1 of all.
// - Between the two flags, element i of every buffer is read and written by one member alone, the owner of i's slice; a fold
//   reads an element of all inputs before it stores it to any output.
// - A member stores reduced = t+1 once its slice is stored everywhere, and leaves after seeing reduced >= t+1 of all: then its
//   whole buffer is final, and no other member touches this buffer until its member arrives at another operation.
// The stores are releases and the loads acquires, so that each of these steps sees the ones before it.
//
// Results overwrite inputs, so no member may leave between its arrival and the end. If a member fails in this time, the
// operation fails on all members, and the contents of their buffers are undefined.
//
// It cannot deadlock: arriving waits only for the turn, a fold only for arrivals, and leaving only for folds.
//
// All ranks get the same bits because one member computes an element and stores it to all. Layout-independent: contributions
// are added in rank order in every slice.
//
// An absent member has no contribution, but room for the result: it fills its buffer with the identity of the op.
//
// Source: reductions in address spaces that ranks share, Hashmi et al., Designing efficient shared address space reduction
// collectives for multi-/many-cores (IPDPS 2018).
#include <algorithm>
#include <utility>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/chunking.h"
#include "collectives/part_cursor.h"
#include "collectives/reducer.h"
#include "collectives/shared_collective.h"
#include "collectives/tile_reducer.h"

namespace hvdlite::collectives {

namespace {

// The bytes of each buffer that one step folds. After Tuning::max_steps steps, other operations of this rank advance.
constexpr std::size_t kStepBytes = std::size_t{512} * 1024;

class AllreducePush final : public SharedCollective {
 public:
  AllreducePush(Comm comm, AllreduceArgs args, const TileReducer& reducer, const Tuning& tuning)
      : SharedCollective(std::move(comm), tuning),
        args_(std::move(args)),
        reducer_(reducer),
        cursor_(args_.parts, reducer_.result_bytes()),
        places_(args_.mapped.size()) {
    const std::size_t count = args_.count();
    slice_ = part_of({0, count}, static_cast<std::size_t>(size()), static_cast<std::size_t>(me()),
                     alignment_grain(count, size(), reducer_.result_bytes()));
  }

 protected:
  bool step() override {
    if (!arrived_) return arrived_ = arrive();
    return reduced_ ? leave() : fold();
  }

 private:
  std::uint64_t count() const { return channel().tiles() + 1; }

  bool arrive() {
    for (const AllreducePart& part : args_.parts) {
      if (part.input == nullptr) {
        reducer_.contribute(static_cast<std::byte*>(part.output), nullptr, part.count);
      }
    }
    channel().flags(me()).arrived.store(count(), std::memory_order_release);
    ring_others();
    return true;
  }

  bool fold() {
    if (!channel().all_arrived(count())) return false;
    const std::size_t limit = std::max<std::size_t>(kStepBytes / reducer_.result_bytes(), 1);
    const Range range = {slice_.offset + folded_, std::min(limit, slice_.count - folded_)};
    cursor_.walk(range, [&](const std::byte*, std::byte* own, std::size_t, std::size_t n) {
      for (std::size_t member = 0; member < places_.size(); ++member) {
        places_[member] =
            args_.mapped[member] + (own - args_.mapped[static_cast<std::size_t>(me())]);
      }
      reducer_.fold(places_.data(), size(), places_.data(), size(), n);
    });
    folded_ += range.count;
    if (folded_ < slice_.count) return true;
    channel().flags(me()).reduced.store(count(), std::memory_order_release);
    ring_others();
    return reduced_ = true;
  }

  bool leave() {
    if (!channel().all_reduced(count())) return false;
    channel().flags(me()).done.store(count(), std::memory_order_release);
    finish(1);
    return true;
  }

  AllreduceArgs args_;
  TileReducer reducer_;
  PartCursor cursor_;
  Range slice_;
  std::size_t folded_ = 0;
  std::vector<void*> places_;
  bool arrived_ = false;
  bool reduced_ = false;  // this member's slice
};

}  // namespace

std::unique_ptr<Collective> allreduce_push(Comm comm, AllreduceArgs args, const Tuning& tuning) {
  HVD_CHECK(comm.shared() != nullptr && comm.shared()->size() == comm.size());
  HVD_CHECK(args.mapped.size() == static_cast<std::size_t>(comm.size()));
  HVD_CHECK(identity_survives(args.reduction));
  for (const AllreducePart& part : args.parts) {
    HVD_CHECK(part.output != nullptr && (part.input == nullptr || part.input == part.output));
  }
  const TileReducer reducer(args.reduction, tuning.isa);
  return std::make_unique<AllreducePush>(std::move(comm), std::move(args), reducer, tuning);
}

}  // namespace hvdlite::collectives
