#include "collectives/chunking.h"

#include <algorithm>
#include <numeric>

#include "base/cache_line.h"

namespace hvdlite::collectives {

Range part_of(const Range& run, std::size_t parts, std::size_t index, std::size_t grain) {
  const std::size_t grains = pieces_in(run.count, grain);
  const std::size_t each = grains / parts;
  const std::size_t larger = grains % parts;  // this many parts have one grain more
  const auto begin_of = [&](std::size_t part) {
    return std::min(run.count, (part * each + std::min(part, larger)) * grain);
  };
  const std::size_t begin = begin_of(index);
  return {run.offset + begin, begin_of(index + 1) - begin};
}

Range piece_of(const Range& run, std::size_t index, std::size_t limit) {
  const std::size_t begin = std::min(index * limit, run.count);
  return {run.offset + begin, std::min(limit, run.count - begin)};
}

std::size_t alignment_grain(std::size_t count, int ranks, std::size_t element_bytes) {
  constexpr std::size_t kLinesEach = 16;  // below this, rounding to lines would unbalance the parts
  const std::size_t line = std::max<std::size_t>(base::kCacheLine / element_bytes, 1);
  return count / static_cast<std::size_t>(ranks) >= kLinesEach * line ? line : 1;
}

Pieces Pieces::of_buffer(std::size_t count, int ranks, std::size_t limit, std::size_t grain) {
  Pieces pieces;
  limit = std::clamp<std::size_t>(limit, 1, std::max<std::size_t>(count, 1));
  const auto parts = static_cast<std::size_t>(ranks);
  pieces.cut_ = {count, pieces_in(pieces_in(count, limit), parts), parts, grain};
  // part_of puts the larger parts first.
  if (pieces.rounds() > 0) pieces.largest_ = pieces.piece(0, 0).count;
  return pieces;
}

Pieces Pieces::of_parts(const std::vector<std::size_t>& counts, std::size_t limit) {
  Pieces pieces;
  pieces.limit_ = std::max<std::size_t>(limit, 1);
  pieces.chunks_ = runs_of(counts);
  for (const std::size_t count : counts) {
    pieces.cut_.rounds = std::max(pieces.cut_.rounds, pieces_in(count, pieces.limit_));
    pieces.largest_ = std::max(pieces.largest_, std::min(count, pieces.limit_));
  }
  return pieces;
}

Range Pieces::piece(std::size_t round, int rank) const {
  if (chunks_.empty()) return cut_.part(round, rank);
  const Range& chunk = chunks_[static_cast<std::size_t>(rank)];
  const std::size_t segments = pieces_in(chunk.count, limit_);
  return round < segments ? part_of(chunk, segments, round) : Range{chunk.offset, 0};
}

std::size_t Pieces::chunk_offset(int rank) const {
  return chunks_.empty() ? 0 : chunks_[static_cast<std::size_t>(rank)].offset;
}

std::vector<std::size_t> offsets_of(const std::vector<std::size_t>& sizes) {
  std::vector<std::size_t> offsets;
  offsets.reserve(sizes.size());
  std::size_t offset = 0;
  for (const std::size_t size : sizes) {
    offsets.push_back(offset);
    offset += size;
  }
  return offsets;
}

std::vector<Range> runs_of(const std::vector<std::size_t>& sizes) {
  const std::vector<std::size_t> offsets = offsets_of(sizes);
  std::vector<Range> runs;
  runs.reserve(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) runs.push_back({offsets[i], sizes[i]});
  return runs;
}

std::size_t total_of(const std::vector<std::size_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

}  // namespace hvdlite::collectives
