// Allreduce through shared memory: the ranks of one host read each other's contributions where they lie, slice by slice, and
// no message is sent.
//
// What moves where, three ranks, one tile of three slices a b c (slice r is rank r's own; "b1" is rank 1's contribution
// to b). Each rank has private memory and a buffer that the others read:
//
//                 rank 0                    rank 1                    rank 2
//   fill          b0 c0 -> buffer           a1 c1 -> buffer           a2 b2 -> buffer
//   reduce        a = a0 + a1 + a2          b = b0 + b1 + b2          c = c0 + c1 + c2
//                 -> output, buffer         -> output, buffer         -> output, buffer
//   drain         b c -> output             a c -> output             a b -> output
//
// Rank 0 reads a0 from its private memory (a rank packs its own slice only if it has no input or has to scale it first, see
// tile_reducer.h), and a1, a2 from the buffers of ranks 1 and 2. One pass does prescale, cast, addition, postscale and
// division. 16-bit floats lie in the buffers unchanged and are added in float32. Successive tiles use the two buffers of each
// rank in turn, so the buffers stay in the cache, and a rank fills one while others reduce the other. shared_collective.h
// proves that this is correct and cannot deadlock.
//
// For few bytes, allreduce_inline takes fewer steps.
//
// The elements may be scattered over many parts (AllreduceArgs). Each step goes through its tile part by part, and reads and
// writes the user's tensors directly. Nothing is packed or unpacked.
//
// A result is open if it is one run of memory that the other ranks map (transport/result_memory.h: hvdlite allocated it), and
// is not written past the caches. Its owner does not drain: the rank that reduces a slice also stores the slice into the open
// results of the other ranks. For example, if rank 0's output is open, ranks 1 and 2 store b and c into it, and rank 0 drains
// nothing. If all results are open, no result is written to the buffers. This is safe for the same reason as the use of the
// buffers. A rank tells the place of its result with its first tile. For tile t, another rank stores into an open result after
// it has seen arrived >= t+1 of the result's owner, and before it stores its own reduced >= t+1. No rank leaves before it has
// seen reduced >= t+1 of all ranks. Each element is stored by one rank, the owner of its slice. The other ranks read the word
// that tells the place before they have reduced the operation's first tile, and not later. The word is written again two tiles
// later at the earliest, and the fill of that later tile waits until all ranks are done with the first tile.
//
// A large result that is not in place is written past the caches (Tuning::streaming_bytes): its lines are not in the caches,
// and an ordinary store would load them only to overwrite them. In this case a rank writes its own slice into the buffer first,
// and copies it from there to the output, unless the buffer itself is written past the caches (tile_stores.h).
//
// Cost for p ranks and S bytes, in bytes that each rank loads and stores: (2(p-1)/p fill + (p+3)/p reduce + 2(p-1)/p drain) S =
// (5 - 1/p) S; if all results are open, (2(p-1)/p fill + 2 reduce) S = (4 - 2/p) S. A rank also waits twice for the slowest
// rank; if there are several tiles, these waits overlap with work on other tiles. Bytes sent: none.
//
// In place: fill copies a rank's contribution to the others' slices. The rank's contribution to its own slice is read in the
// same pass that overwrites it. Other ranks touch the output only if it is open, and only where the contribution was copied
// before.
//
// All ranks get the same bits because a slice is computed once. Contributions are added in rank order in every tile and slice,
// so the algorithm is layout-independent, and gives the bits of allreduce_direct and allreduce_inline.
//
// Source: tiles through double buffers, each slice reduced by its owner, are common practice for ranks of one host: Li,
// Hoefler and Snir, NUMA-aware shared-memory collective communication for MPI (HPDC 2013).
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

class AllreduceTiles final : public TilePipeline {
 public:
  AllreduceTiles(Comm comm, const Tuning& tuning, const TileReducer& reducer,
                 std::vector<AllreducePart> parts, const Cut& cut)
      : TilePipeline(std::move(comm), tuning, /*reduces=*/true),
        reducer_(reducer),
        parts_(std::move(parts)),
        cut_(cut),
        gathered_(static_cast<std::size_t>(size())),
        inputs_(static_cast<std::size_t>(size())),
        filling_(parts_, reducer.result_bytes()),
        reducing_(parts_, reducer.result_bytes()),
        publishing_(parts_, reducer.result_bytes()),
        draining_(parts_, reducer.result_bytes()) {
    if (cut.rounds > 0) set_tiles(cut.rounds, cut.round(0).count * reducer.contribution_bytes());
    std::size_t out_of_place = 0;  // elements of outputs whose lines were not just read as inputs
    for (const AllreducePart& part : parts_) {
      if (part.output != nullptr && part.input != part.output) out_of_place += part.count;
    }
    set_result_bytes(out_of_place * reducer.result_bytes(), tuning);
    if (size() == 1 || streams() || parts_.size() != 1) return;
    place_ = channel().place_of_result(parts_.front().output, cut.count * reducer.result_bytes());
  }

  bool result_is_open() const override { return place_ != 0; }

 private:
  void fill(std::size_t tile) override {
    const Range whole = cut_.round(tile);
    if (tile == 0) channel().tell_result(first_tile(), place_);
    const Range mine = cut_.part(tile, me());
    contribute(tile, {whole.offset, mine.offset - whole.offset});
    const std::size_t behind = mine.offset + mine.count;
    contribute(tile, {behind, whole.offset + whole.count - behind});
  }

  void contribute(std::size_t tile, const Range& range) {
    std::byte* const place = contribution(me(), tile, range.offset);
    filling_.walk(range, [&](const void* input, void*, std::size_t offset, std::size_t n) {
      reducer_.contribute(place + offset * reducer_.contribution_bytes(), input, n, puts_past());
    });
  }

  // Unless from_buffer(), writes all results of the slice into the output first, and then copies them to the own buffer for the
  // other ranks. The own buffer's lines are in the other ranks' caches. If a rank wrote to these lines while it reads the lines
  // of the others' buffers, writes and reads would stall each other and take twice as long.
  void reduce(std::size_t tile) override {
    const Range mine = cut_.part(tile, me());
    std::byte* const results = contribution(me(), tile, mine.offset);
    const std::size_t bytes = reducer_.result_bytes();
    if (tile == 0) find_results();
    gather(tile, mine.offset);
    reducing_.walk(mine, [&](const void* input, void* output, std::size_t offset, std::size_t n) {
      if (output == nullptr && size() == 1) return;
      collect(offset);
      std::byte* const own = results + offset * reducer_.contribution_bytes();
      if (input == nullptr || reducer_.scaled()) {
        reducer_.contribute(own, input, n);
      } else {
        inputs_[static_cast<std::size_t>(me())] = input;
      }
      const bool into_buffer = output == nullptr || from_buffer();
      places_[0] = into_buffer ? results + offset * bytes : output;
      for (std::size_t other = 0; other < open_results_.size(); ++other) {
        places_[other + 1] = open_results_[other] + (mine.offset + offset) * bytes;
      }
      reducer_.fold(places_.data(), static_cast<int>(open_results_.size()) + 1, inputs_.data(),
                    size(), n);
    });
    if (all_results_open_ && !from_buffer()) return;
    publishing_.walk(mine, [&](const void*, void* output, std::size_t offset, std::size_t n) {
      if (output == nullptr) return;
      std::byte* const published = results + offset * bytes;
      if (from_buffer()) {
        deliver(output, published, n * bytes);
      } else {
        put(published, output, n * bytes);
      }
    });
  }
  // True: results are folded into the own buffer and copied to the output. False: the other way round. Only a copy can be
  // streamed.
  bool from_buffer() const { return streams() && !puts_past(); }

  // Finds the other ranks' open results, into which this rank stores.
  void find_results() {
    for (int member = 0; member < size(); ++member) {
      if (member == me()) continue;
      const std::size_t bytes = cut_.count * reducer_.result_bytes();
      std::byte* const result = channel().result(member, first_tile(), bytes);
      if (result != nullptr) open_results_.push_back(result);
    }
    places_.resize(open_results_.size() + 1);
    all_results_open_ = places_.size() == static_cast<std::size_t>(size());
  }

  void drain(std::size_t tile) override {
    if (place_ != 0) return;  // the other ranks have stored their slices into the output
    for (int owner = 0; owner < size(); ++owner) {
      if (owner == me()) continue;
      const Range slice = cut_.part(tile, owner);
      const std::byte* const results = contribution(owner, tile, slice.offset);
      const std::size_t bytes = reducer_.result_bytes();
      draining_.walk(slice, [&](const void*, void* output, std::size_t offset, std::size_t n) {
        if (output != nullptr) deliver(output, results + offset * bytes, n * bytes);
      });
    }
  }

  std::uint64_t way() const override { return 2 * open_results_.size() + (place_ != 0 ? 1 : 0); }

  // The place in a member's tile of its contribution to the elements from this one on.
  std::byte* contribution(int member, std::size_t tile, std::size_t element) const {
    return buffer(member, tile) +
           (element - cut_.round(tile).offset) * reducer_.contribution_bytes();
  }
  // gather: finds all members' contributions to the elements from this one on. collect: points inputs_ at these contributions,
  // but `offset` elements further on.
  void gather(std::size_t tile, std::size_t element) {
    for (int member = 0; member < size(); ++member) {
      gathered_[static_cast<std::size_t>(member)] = contribution(member, tile, element);
    }
  }
  void collect(std::size_t offset) {
    for (std::size_t member = 0; member < inputs_.size(); ++member) {
      inputs_[member] = gathered_[member] + offset * reducer_.contribution_bytes();
    }
  }

  TileReducer reducer_;
  std::vector<AllreducePart> parts_;
  Cut cut_;                                 // into tiles, and a tile into slices
  std::vector<const std::byte*> gathered_;  // by member
  std::vector<const void*> inputs_;         // of one fold, by member
  std::uint64_t place_ = 0;               // the place of this rank's open result; 0: it is not open
  std::vector<std::byte*> open_results_;  // the other ranks' open results
  bool all_results_open_ = false;
  std::vector<void*> places_;  // where one fold stores
  PartCursor filling_;
  PartCursor reducing_;
  PartCursor publishing_;
  PartCursor draining_;
};

}  // namespace

std::unique_ptr<Collective> allreduce_shm(Comm comm, AllreduceArgs args, const Tuning& tuning) {
  HVD_CHECK(comm.shared() != nullptr);
  const TileReducer reducer(args.reduction, tuning.isa);
  const std::size_t element = reducer.contribution_bytes();
  const std::size_t count = args.count();
  const std::size_t bytes = count * element;
  const int members = comm.shared()->size();
  std::vector<AllreducePart> parts = merged_parts(args.parts, reducer.result_bytes());
  const std::size_t tile_bytes = comm.shared()->tile_bytes();
  Cut cut{count, 0, static_cast<std::size_t>(members),
          std::max<std::size_t>(base::kCacheLine / element, 1)};
  const std::size_t lines = pipelined_tile(bytes, tile_bytes) / (cut.grain * element);
  cut.rounds = pieces_in(count, lines * cut.grain);
  return std::make_unique<AllreduceTiles>(std::move(comm), tuning, reducer, std::move(parts), cut);
}

}  // namespace hvdlite::collectives
