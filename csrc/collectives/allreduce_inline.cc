// Inline allreduce, for small buffers of ranks that share memory. Each rank writes its whole contribution to shared memory, and
// each rank folds all contributions itself. So a rank waits once, while it waits twice in allreduce_shm. But a rank does p
// times as many additions (p: the number of ranks).
//
// What moves where, three ranks:
//
//                 rank 0                    rank 1                    rank 2
//   put           a0 -> own place           a1 -> own place           a2 -> own place
//   fold          a0 + a1 + a2 -> output    a0 + a1 + a2 -> output    a0 + a1 + a2 -> output
//
// Two kinds of places:
//   line      Up to WindowFlags::kInlineBytes: the cache line of the flag that announces the payload (SharedCollective).
//   tiles     Larger buffers: one tile after the other, as shared_collective.h draws it, without a reduce step.
//
// A prepared allreduce (prepared.h) folds in the same way, and does not wait.
//
// Cost for p ranks and S bytes: each rank loads and stores (p + 3) S bytes, and waits once for the slowest rank. Bytes sent:
// none.
//
// In place: a rank's contribution is copied before anything is folded; no other rank touches the output.
//
// All ranks get the same bits because all fold the same contributions in rank order, wherever an element lies. So the algorithm
// is layout-independent, and gives the bits of allreduce_shm and allreduce_direct.
//
// Source: contributions that travel with their flags are common practice for small messages of ranks of one host, such as Open
// MPI's shared-memory collectives.
#include <algorithm>
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
    if (!published_) return published_ = publish();
    if (!all_inline_arrived()) return false;
    fold();
    inline_done();
    finish(1);
    return true;
  }

  bool publish() {
    std::byte payload[kInlineBytes];
    PartCursor cursor(parts_, reducer_.result_bytes());
    cursor.walk({0, count_}, [&](const void* input, void*, std::size_t offset, std::size_t n) {
      reducer_.contribute(payload + offset * reducer_.contribution_bytes(), input, n);
    });
    return publish_inline(payload, count_ * reducer_.contribution_bytes());
  }

  void fold() {
    std::vector<const void*> inputs(static_cast<std::size_t>(size()));
    PartCursor cursor(parts_, reducer_.result_bytes());
    cursor.walk({0, count_}, [&](const void*, void* output, std::size_t offset, std::size_t n) {
      if (output == nullptr) return;
      for (int member = 0; member < size(); ++member) {
        inputs[static_cast<std::size_t>(member)] =
            inline_payload(member) + offset * reducer_.contribution_bytes();
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
  // tile: the most elements of a tile.
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
  Range range(std::size_t tile) const { return piece_of({0, count_}, tile, tile_); }
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

}  // namespace

std::unique_ptr<Collective> allreduce_inline(Comm comm, AllreduceArgs args, const Tuning& tuning) {
  HVD_CHECK(comm.shared() != nullptr);
  const TileReducer reducer(args.reduction, tuning.isa);
  const std::size_t element = reducer.contribution_bytes();
  const std::size_t count = args.count();
  std::vector<AllreducePart> parts = merged_parts(args.parts, reducer.result_bytes());
  if (count > 0 && count * element <= transport::WindowFlags::kInlineBytes) {
    return std::make_unique<AllreduceLine>(std::move(comm), tuning, reducer, std::move(parts),
                                           count);
  }
  const std::size_t bytes = pipelined_tile(count * element, comm.shared()->tile_bytes());
  const std::size_t tile = bytes / base::kCacheLine * base::kCacheLine / element;
  return std::make_unique<AllreduceWholeTiles>(std::move(comm), tuning, reducer, std::move(parts),
                                               count, tile);
}

}  // namespace hvdlite::collectives
