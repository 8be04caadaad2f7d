// The steps of allreduce_hierarchical inside each host, before and after the exchange between hosts.
//
// The buffer is cut into rounds, a round into one slice for each owner; owners are the first q members of every host, and the
// i-th slice belongs to the i-th owner of each host. Rounds and slices are the same on all hosts (SlicePlan).
//
//   HostReduce    folds the contributions of this host's members to each slice into a partial, at the slice's owner
//   HostPublish   hands the owners' finished slices out to all members of this host
//
// Both are pipelines of tiles (shared_collective.h). Tile j of a round carries the j-th piece of every slice, and each piece
// has a part of the tile as its lane. The number of tiles in a round depends on the host's window and does not matter to other
// hosts.
//
// An owner keeps its slice of a round in one of kSlots slots. So its HostReduce drains tiles of round k only after HostPublish
// is done with round k - kSlots, and its HostPublish fills tiles of round k only after its slice of the round is finished.
// RoundCounts has the counts for both conditions. Members that own no slice do not wait for either.
//
// Thread: the holder of the progress token. Owns: each of the two has a turn of its channel. Blocks: no. Throws: what
// SharedChannel throws.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "collectives/block_layout.h"
#include "collectives/chunking.h"
#include "collectives/part_cursor.h"
#include "collectives/shared_collective.h"
#include "collectives/tile_reducer.h"

namespace hvdlite::collectives {

// How a buffer is cut: the same on all hosts.
struct SlicePlan {
  Cut cut;         // a part for each owner; the grain is alignment_grain
  int owners = 1;  // on each host
  // With a codec: the places of its blocks, with which slices begin and end. Otherwise null.
  std::shared_ptr<const BlockLayout> blocks;

  Range slice(std::size_t round, int owner) const {
    const Range even = cut.part(round, owner);
    return blocks ? blocks->whole_blocks(even) : even;
  }
  // No slice has more elements: part_of puts the larger parts first, and whole_blocks moves an end by less than a block.
  std::size_t largest() const {
    if (cut.rounds == 0) return 0;
    const std::size_t block = blocks ? static_cast<std::size_t>(blocks->codec().block) : 0;
    return cut.part(0, 0).count + block;
  }
};

// The progress of one member: each field counts the rounds that have reached a stage.
struct RoundCounts {
  std::size_t reduced = 0;    // this host's partial is in its slot
  std::size_t finished = 0;   // the result is in its slot
  std::size_t published = 0;  // all members' results of the round are in this member's output
};

// The number of slots. While round k is exchanged between hosts in one slot, round k-1 is published from the other slot, and
// then round k+1 is reduced into that slot.
inline constexpr std::size_t kSlots = 2;

struct HostJob {
  SlicePlan plan;
  std::vector<AllreducePart> parts;
  std::byte* partials[kSlots] = {};  // of the slices that this member owns, null if it owns none
  std::byte* results[kSlots] = {};   // of type T; the same memory where T is A
  RoundCounts done;
};

// What HostReduce and HostPublish have in common: the tiles of the rounds.
class HostStage : public TilePipeline {
 protected:
  // element_bytes: of an element in the tiles; result_bytes: of one of the user's type. The job outlives it.
  HostStage(Comm comm, const Tuning& tuning, HostJob& job, std::size_t element_bytes,
            std::size_t result_bytes);

  bool owns() const { return me() < job_.plan.owners; }
  std::size_t round_of(std::size_t tile) const { return tile / tiles_per_round_; }
  bool ends_round(std::size_t tile) const { return (tile + 1) % tiles_per_round_ == 0; }
  // The elements of an owner's slice that a tile carries.
  Range piece(std::size_t tile, int owner) const;
  // own_piece: piece(tile, me()). Returns how many elements of this member's slice come before the piece.
  std::size_t place_in_slice(std::size_t tile, const Range& own_piece) const {
    return own_piece.offset - job_.plan.slice(round_of(tile), me()).offset;
  }
  std::byte* lane(int member, std::size_t tile, int owner) const {
    return buffer(member, tile) + lanes_.offset(owner);
  }
  PartCursor& cursor(int owner) { return cursors_[static_cast<std::size_t>(owner)]; }

  HostJob& job_;

 private:
  Lanes lanes_;
  std::size_t limit_;  // elements of a piece
  std::size_t tiles_per_round_;
  std::vector<PartCursor> cursors_;  // by owner
};

class HostReduce final : public HostStage {
 public:
  // The reducer and the job outlive it.
  HostReduce(Comm comm, const Tuning& tuning, const TileReducer& reducer, HostJob& job);

 private:
  void fill(std::size_t tile) override;
  void drain(std::size_t tile) override;
  bool may_drain(std::size_t tile) const override;

  const TileReducer& reducer_;
  std::vector<const void*> inputs_;
};

class HostPublish final : public HostStage {
 public:
  // result_bytes: of one element. The job outlives it.
  HostPublish(Comm comm, const Tuning& tuning, std::size_t result_bytes, HostJob& job);

 private:
  void fill(std::size_t tile) override;
  void drain(std::size_t tile) override;
  bool may_fill(std::size_t tile) const override;

  const std::byte* own(std::size_t tile, const Range& range) const;

  std::size_t result_bytes_;
};

}  // namespace hvdlite::collectives
