// Alltoall of uneven parts through shared memory: every rank puts its parts for the others into its buffer, in one lane for
// each receiver. Then each rank copies the lanes for itself out of the others' buffers.
//
// What moves where, three ranks ("01" is rank 0's part for rank 1), one tile:
//
//                 rank 0                   rank 1                   rank 2
//   fill          lanes - 01 02            lanes 10 - 12            lanes 20 21 -
//   drain         00 10 20 -> output       01 11 21 -> output       02 12 22 -> output
//
// A rank copies its part for itself from its input. Tile k carries the k-th piece of every part; a piece is as long as a lane.
// The number of tiles depends on the largest part of all, which no rank knows alone. So a first tile, in the cache line of its
// flag, tells the size of each rank's largest part. Successive tiles use the two buffers of each rank in turn:
// shared_collective.h proves that this is correct and cannot deadlock.
//
// Cost for p ranks of which each sends S bytes evenly, in bytes that each rank loads and stores: 4(p-1)/p S + 2/p S, and two
// waits for the slowest. If one part is much larger than the others, most tiles carry only that part's lane, which is 1/p of a
// tile. Bytes sent: none.
//
// All bytes are copied, never computed.
//
// Source: see allreduce_shm.cc.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collectives/algorithms.h"
#include "collectives/chunking.h"
#include "collectives/shared_collective.h"

namespace hvdlite::collectives {

namespace {

class AlltoallvShm final : public TilePipeline {
 public:
  AlltoallvShm(Comm comm, const Tuning& tuning, const AlltoallvArgs& args)
      : TilePipeline(std::move(comm), tuning, /*reduces=*/false),
        input_(static_cast<const std::byte*>(args.input)),
        output_(static_cast<std::byte*>(args.output)),
        sent_(runs_of(args.send_bytes)),
        received_(runs_of(args.recv_bytes)),
        largest_(*std::ranges::max_element(args.send_bytes)),
        lanes_(channel().tile_bytes(), size(), 1) {
    skip_tiles(1);
    set_result_bytes(total_of(args.recv_bytes), tuning);
  }

 private:
  bool step() override {
    if (agreed_) return TilePipeline::step();
    if (!published_) return published_ = publish_inline(&largest_, sizeof(largest_));
    if (!all_inline_arrived()) return false;
    std::uint64_t largest = 0;
    for (int member = 0; member < size(); ++member) {
      std::uint64_t theirs = 0;
      std::memcpy(&theirs, inline_payload(member), sizeof(theirs));
      largest = std::max(largest, theirs);
    }
    inline_done();
    set_tiles(pieces_in(largest, lanes_.bytes()),
              std::min<std::size_t>(largest, lanes_.bytes()) * static_cast<std::size_t>(size()));
    return agreed_ = true;
  }

  void fill(std::size_t tile) override {
    for (int peer = 0; peer < size(); ++peer) {
      const Range range = piece(tile, sent_, peer);
      if (peer == me() || range.count == 0) continue;
      put(buffer(me(), tile) + lanes_.offset(peer), input_ + range.offset, range.count);
    }
  }

  void drain(std::size_t tile) override {
    for (int peer = 0; peer < size(); ++peer) {
      const Range range = piece(tile, received_, peer);
      if (range.count == 0) continue;
      const std::byte* const from = peer == me() ? input_ + piece(tile, sent_, me()).offset
                                                 : buffer(peer, tile) + lanes_.offset(me());
      deliver(output_ + range.offset, from, range.count);
    }
  }

  // The bytes of the part for or from `peer` that a tile carries, as a range of the input or of the output.
  Range piece(std::size_t tile, const std::vector<Range>& parts, int peer) const {
    return piece_of(parts[static_cast<std::size_t>(peer)], tile, lanes_.bytes());
  }

  const std::byte* input_;
  std::byte* output_;
  std::vector<Range> sent_;  // the parts, by member
  std::vector<Range> received_;
  std::uint64_t largest_;  // bytes of the largest part that this rank sends
  Lanes lanes_;
  bool published_ = false;
  bool agreed_ = false;
};

}  // namespace

std::unique_ptr<Collective> alltoallv_shm(Comm comm, AlltoallvArgs args, const Tuning& tuning) {
  HVD_CHECK(comm.shared() != nullptr);
  const auto size = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  HVD_CHECK(args.send_bytes.size() == size && args.recv_bytes.size() == size);
  HVD_CHECK(args.send_bytes[rank] == args.recv_bytes[rank]);
  return std::make_unique<AlltoallvShm>(std::move(comm), tuning, args);
}

}  // namespace hvdlite::collectives
