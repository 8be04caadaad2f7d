// Broadcast through shared memory: the root puts the data into its buffer, tile by tile, and all others copy them out.
//
// What moves where, three ranks, root 1, three tiles x y z:
//
//   root 1        x -> buffer 0       y -> buffer 1       z -> buffer 0, once both others are done with x
//   ranks 0, 2                        x -> data           y -> data           z -> data
//
// shared_collective.h proves that two buffers are enough and that this cannot deadlock.
//
// Cost for S bytes and any number of ranks: each rank loads and stores 2 S bytes. The other ranks wait once for the root; if
// there are several tiles, the waits overlap with work on other tiles. Bytes sent: none.
//
// All ranks get the same bytes: they are copied, never computed.
//
// Source: see allreduce_shm.cc.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "collectives/algorithms.h"
#include "collectives/chunking.h"
#include "collectives/shared_collective.h"

namespace hvdlite::collectives {

namespace {

class BroadcastShm final : public TilePipeline {
 public:
  BroadcastShm(Comm comm, const Tuning& tuning, const BroadcastArgs& args)
      : TilePipeline(std::move(comm), tuning, /*reduces=*/false, /*filler=*/args.root),
        data_(static_cast<std::byte*>(args.data)),
        bytes_(args.bytes),
        root_(args.root),
        limit_(pipelined_tile(args.bytes, channel().tile_bytes())) {
    set_tiles(size() > 1 ? pieces_in(bytes_, limit_) : 0, std::min(bytes_, limit_));
    set_result_bytes(bytes_, tuning);
  }

 private:
  void fill(std::size_t tile) override {
    const Range range = piece_of({0, bytes_}, tile, limit_);
    put(buffer(me(), tile), data_ + range.offset, range.count);
  }
  void drain(std::size_t tile) override {
    const Range range = piece_of({0, bytes_}, tile, limit_);
    if (me() != root_) deliver(data_ + range.offset, buffer(root_, tile), range.count);
  }

  std::byte* data_;
  std::size_t bytes_;
  int root_;
  std::size_t limit_;
};

}  // namespace

std::unique_ptr<Collective> broadcast_shm(Comm comm, BroadcastArgs args, const Tuning& tuning) {
  HVD_CHECK(comm.shared() != nullptr);
  HVD_CHECK(args.root >= 0 && args.root < comm.size());
  return std::make_unique<BroadcastShm>(std::move(comm), tuning, args);
}

}  // namespace hvdlite::collectives
