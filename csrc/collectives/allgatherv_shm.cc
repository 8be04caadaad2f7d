// Allgather through shared memory: every rank puts its part into its buffer, tile by tile, and copies the others' out.
//
// What moves where, three ranks with parts a b c, one tile of each:
//
//                 rank 0              rank 1              rank 2
//   fill          a -> buffer         b -> buffer         c -> buffer
//   drain         a b c -> output     a b c -> output     a b c -> output
//
// A rank copies its own part from its input. Tile k carries the k-th piece of every part; a rank whose part is shorter puts
// nothing into the later tiles. Successive tiles use the two buffers of each rank in turn: shared_collective.h proves that this
// is correct and cannot deadlock.
//
// Cost for p ranks and S bytes in all, even parts, in bytes that each rank loads and stores: (2/p + 2) S, and one wait for the
// slowest. Bytes sent: none.
//
// In place: a rank's own part already lies at its place in the output, and no other part is written there.
//
// All bytes are copied, never computed.
//
// Source: see allreduce_shm.cc.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collectives/algorithms.h"
#include "collectives/chunking.h"
#include "collectives/shared_collective.h"

namespace hvdlite::collectives {

namespace {

class AllgathervShm final : public TilePipeline {
 public:
  AllgathervShm(Comm comm, const Tuning& tuning, const AllgathervArgs& args)
      : TilePipeline(std::move(comm), tuning, /*reduces=*/false),
        input_(static_cast<const std::byte*>(args.input)),
        output_(static_cast<std::byte*>(args.output)),
        parts_(runs_of(args.bytes)) {
    const std::size_t longest = *std::ranges::max_element(args.bytes);
    limit_ = pipelined_tile(longest, channel().tile_bytes());
    set_tiles(pieces_in(longest, limit_), std::min(longest, limit_));
    set_result_bytes(total_of(args.bytes), tuning);
  }

 private:
  void fill(std::size_t tile) override {
    const Range range = piece(tile, me());
    if (range.count > 0 && size() > 1) put(buffer(me(), tile), own(tile), range.count);
  }

  void drain(std::size_t tile) override {
    for (int member = 0; member < size(); ++member) {
      const Range range = piece(tile, member);
      if (range.count == 0) continue;
      const std::byte* const from = member == me() ? own(tile) : buffer(member, tile);
      std::byte* const to = output_ + range.offset;
      if (from != to) deliver(to, from, range.count);
    }
  }

  // The bytes of a member's part that a tile carries, as a range of the output.
  Range piece(std::size_t tile, int member) const {
    return piece_of(parts_[static_cast<std::size_t>(member)], tile, limit_);
  }
  // Where this rank's piece lies in its input.
  const std::byte* own(std::size_t tile) const { return input_ + tile * limit_; }

  const std::byte* input_;
  std::byte* output_;
  std::vector<Range> parts_;  // of the output, by member
  std::size_t limit_;
};

}  // namespace

std::unique_ptr<Collective> allgatherv_shm(Comm comm, AllgathervArgs args, const Tuning& tuning) {
  HVD_CHECK(comm.shared() != nullptr);
  HVD_CHECK(args.bytes.size() == static_cast<std::size_t>(comm.size()));
  return std::make_unique<AllgathervShm>(std::move(comm), tuning, args);
}

}  // namespace hvdlite::collectives
