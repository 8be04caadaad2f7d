// Reduce-scatter through shared memory: every rank puts its contributions to the others' chunks into its buffer, in one lane
// for each chunk. The owner of a chunk folds its own input and this chunk's lanes in the others' buffers.
//
// What moves where, three ranks with chunks a b c (however uneven; "b1" is rank 1's contribution to b), one tile:
//
//                 rank 0                    rank 1                    rank 2
//   fill          lanes - b0 c0             lanes a1 - c1             lanes a2 b2 -
//   drain         a0 + a1 + a2 -> output    b0 + b1 + b2 -> output    c0 + c1 + c2 -> output
//
// Tile k carries the k-th piece of every chunk; a piece is as long as a lane. If a chunk has fewer pieces, its lane stays
// empty. A rank reads its own contribution from its input, unless it has to scale it first. Successive tiles use the two
// buffers of each rank in turn: shared_collective.h proves that this is correct and cannot deadlock.
//
// Cost for p ranks and S bytes in all, even chunks, in bytes that each rank loads and stores: (2(p-1)/p + (p+1)/p) S, and one
// wait for the slowest. If one chunk is much larger than the others, most tiles carry only that chunk's lane, which is 1/p of a
// tile. Bytes sent: none.
//
// An element has one owner, which adds the contributions in rank order. So the algorithm is layout-independent, and gives the
// bits of reducescatter_direct.
//
// Source: see allreduce_shm.cc.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collectives/algorithms.h"
#include "collectives/chunking.h"
#include "collectives/shared_collective.h"
#include "collectives/tile_reducer.h"

namespace hvdlite::collectives {

namespace {

class ReducescatterShm final : public TilePipeline {
 public:
  ReducescatterShm(Comm comm, const Tuning& tuning, const TileReducer& reducer,
                   const ReducescatterArgs& args)
      : TilePipeline(std::move(comm), tuning, /*reduces=*/false),
        reducer_(reducer),
        input_(static_cast<const std::byte*>(args.input)),
        output_(static_cast<std::byte*>(args.output)),
        chunks_(runs_of(args.counts)),
        lanes_(channel().tile_bytes(), size(), reducer.contribution_bytes()),
        limit_(lanes_.bytes() / reducer.contribution_bytes()),
        inputs_(static_cast<std::size_t>(size())) {
    const std::size_t largest = *std::ranges::max_element(args.counts);
    set_tiles(pieces_in(largest, limit_),
              std::min(largest, limit_) * chunks_.size() * reducer.contribution_bytes());
  }

 private:
  void fill(std::size_t tile) override {
    for (int owner = 0; owner < size(); ++owner) {
      if (owner != me()) contribute(tile, owner);
    }
  }

  void drain(std::size_t tile) override {
    const Range range = piece(tile, me());
    if (range.count == 0) return;
    for (int member = 0; member < size(); ++member) {
      inputs_[static_cast<std::size_t>(member)] = lane(member, tile, me());
    }
    if (input_ == nullptr || reducer_.scaled()) {
      contribute(tile, me());
    } else {
      inputs_[static_cast<std::size_t>(me())] = own(range);
    }
    void* const output = output_ + (range.offset - chunk(me()).offset) * reducer_.result_bytes();
    reducer_.fold(&output, 1, inputs_.data(), size(), range.count);
  }

  void contribute(std::size_t tile, int owner) {
    const Range range = piece(tile, owner);
    if (range.count == 0) return;
    reducer_.contribute(lane(me(), tile, owner), own(range), range.count,
                        owner != me() && puts_past());
  }

  const Range& chunk(int owner) const { return chunks_[static_cast<std::size_t>(owner)]; }
  // The elements of a chunk that a tile carries.
  Range piece(std::size_t tile, int owner) const { return piece_of(chunk(owner), tile, limit_); }
  const std::byte* own(const Range& range) const {
    return input_ == nullptr ? nullptr : input_ + range.offset * reducer_.result_bytes();
  }
  std::byte* lane(int member, std::size_t tile, int owner) const {
    return buffer(member, tile) + lanes_.offset(owner);
  }

  TileReducer reducer_;
  const std::byte* input_;
  std::byte* output_;
  std::vector<Range> chunks_;
  Lanes lanes_;
  std::size_t limit_;  // elements of a lane
  std::vector<const void*> inputs_;
};

}  // namespace

std::unique_ptr<Collective> reducescatter_shm(Comm comm, ReducescatterArgs args,
                                              const Tuning& tuning) {
  HVD_CHECK(comm.shared() != nullptr);
  HVD_CHECK(args.counts.size() == static_cast<std::size_t>(comm.size()));
  const TileReducer reducer(args.reduction, tuning.isa);
  return std::make_unique<ReducescatterShm>(std::move(comm), tuning, reducer, args);
}

}  // namespace hvdlite::collectives
