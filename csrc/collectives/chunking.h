// Pure arithmetic: how a buffer is cut. A chunk is the part that one rank owns. A segment is a pipelined piece of a chunk. A
// round is one segment of every chunk: these segments travel through the ranks at the same time.
// Thread: plain values, any thread. Owns: nothing but the counts it was given. Blocks: no.
// Throws: no.
#pragma once

#include <cstddef>
#include <vector>

namespace hvdlite::collectives {

// A run of elements (or bytes).
struct Range {
  std::size_t offset = 0;
  std::size_t count = 0;
};

// Part `index` of a run that is cut into `parts` parts. Each part begins at a multiple of `grain` elements from the run's
// begin. The parts differ by at most one grain, and the larger parts come first. The last grain of the run may be incomplete.
Range part_of(const Range& run, std::size_t parts, std::size_t index, std::size_t grain = 1);

// A buffer that is cut into rounds, and each round into parts.
struct Cut {
  std::size_t count = 0;  // elements
  std::size_t rounds = 0;
  std::size_t parts = 1;  // of each round
  std::size_t grain = 1;

  Range round(std::size_t index) const { return part_of({0, count}, rounds, index, grain); }
  Range part(std::size_t index, int number) const {
    return part_of(round(index), parts, static_cast<std::size_t>(number), grain);
  }
};

// Piece `index` of a run that is cut into pieces of `limit` elements. The last piece may be shorter. If the run has no piece
// `index`, the result is empty.
Range piece_of(const Range& run, std::size_t index, std::size_t limit);

// The grain for a buffer that is cut into one part for each rank. For a large buffer it is the number of elements in a cache
// line. For a small one it is 1, because with whole cache lines the parts would differ too much.
std::size_t alignment_grain(std::size_t count, int ranks, std::size_t element_bytes);

// Rounds of one segment for each rank; piece(k, r) is rank r's segment in round k, possibly empty.
class Pieces {
 public:
  // For an allreduce, which may cut the buffer freely: rounds are consecutive blocks of the buffer, each cut into one piece for
  // each rank. No piece has more elements than the smallest multiple of grain that is at least limit.
  static Pieces of_buffer(std::size_t count, int ranks, std::size_t limit, std::size_t grain);
  // counts: of the elements of each chunk. Each chunk is cut into segments of at most limit elements, and round k has the k-th
  // segment of each chunk. If a chunk has fewer segments, its piece of the round is empty.
  static Pieces of_parts(const std::vector<std::size_t>& counts, std::size_t limit);

  std::size_t rounds() const { return cut_.rounds; }
  std::size_t largest() const { return largest_; }  // no piece has more elements
  Range piece(std::size_t round, int rank) const;
  // The offset of a rank's chunk; 0 for of_buffer, where a chunk is not one run.
  std::size_t chunk_offset(int rank) const;

 private:
  Pieces() = default;

  Cut cut_;  // for of_parts only its rounds
  std::size_t largest_ = 0;
  // Only of_parts sets these; after of_buffer chunks_ is empty.
  std::size_t limit_ = 1;
  std::vector<Range> chunks_;
};

// The offset of each part when parts of these sizes lie back to back.
std::vector<std::size_t> offsets_of(const std::vector<std::size_t>& sizes);
// The offset and the size of each part.
std::vector<Range> runs_of(const std::vector<std::size_t>& sizes);

std::size_t total_of(const std::vector<std::size_t>& sizes);

// How many pieces of at most `limit` (>= 1) make up `count`.
constexpr std::size_t pieces_in(std::size_t count, std::size_t limit) {
  return count / limit + (count % limit != 0 ? 1 : 0);
}

}  // namespace hvdlite::collectives
