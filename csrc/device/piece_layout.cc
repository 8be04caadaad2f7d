// Why tiles: if each block of the grid took one tensor, most of the GPU would be idle while one block moves the largest. All
// tiles have the same size, except the last tile of a piece, which may be smaller. So no block has much more work than another.
//
// An example: three float32 tensors of 3000, 10 and 1024 elements are packed as float16. The wider of the two sides (tensor and
// buffer) has 4 bytes a unit, so a tile of 4096 bytes has 1024 units:
//
//    piece    count    first_tile    its tiles
//    0        3000     0             1024, 1024 and 952 units
//    1        10       3             10 units
//    2        1024     4             1024 units
//
// The grid has 5 blocks. Block 2 must find piece 0. If the pieces are in the arguments, the block searches by bisection for the
// last piece whose first_tile is at most 2. If they are in a table, the table says for each tile which piece it belongs to:
//
//    | row of piece 0 | row of piece 1 | row of piece 2 | 0 0 0 1 2 |
//
// A piece without units has no tile, and the same first_tile as the next piece. The bisection takes the last of equal ones, so
// no block finds a piece without tiles.
//
// The kernel moves the bounds between tiles by less than a vector of 16 bytes, so that its stores are aligned. Packing and
// unpacking may give different descriptions of the same pieces: see count_of().
#include "device/piece_layout.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace hvdlite::device {

using hvdlite_kernels::Arguments;
using hvdlite_kernels::kInlinePieces;
using hvdlite_kernels::TablePiece;

namespace {

// The size of a tile in bytes of the wider side. Small tiles are for work that does not fill the GPU, so that more
// multiprocessors get a part of it. With large tiles each thread of a block moves four vectors of 16 bytes, and can load all
// four before it stores one.
constexpr std::uint64_t kSmallTile = 4096;
constexpr std::uint64_t kLargeTile = 16384;
// A multiprocessor has 65,536 registers. So it has room for 4 blocks of 256 threads, if a thread has up to 64 registers.
constexpr std::uint64_t kBlocksEach = 4;

// The units that a launch moves for a piece. Unpacking skips a piece without a tensor; packing fills its place with the
// identity.
std::uint64_t count_of(const Piece& piece, const FusionPlan& plan, bool unpack) {
  return unpack && piece.tensor == nullptr ? 0 : std::uint64_t{piece.count} * plan.units;
}

// Rounds up. The units of a tile are a power of two, so a shift divides. describe_pieces() calls tiles_of() for each piece of
// every launch. With a thousand pieces, divisions would take most of its time.
std::uint64_t tiles_of(std::uint64_t count, std::uint64_t tile_units) {
  return (count + tile_units - 1) >> std::countr_zero(tile_units);
}

std::uint64_t number_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

// The size of a tile doubles, from kSmallTile to at most kLargeTile, while there are more tiles than kBlocksEach for each
// multiprocessor. An example with 132 multiprocessors and one piece; 4 * 132 is 528:
//
//    bytes of the wider side    tile        number of tiles
//    up to 2112 KiB             4 KiB       up to 528
//    more, up to 4224 KiB       8 KiB       265 to 528
//    more                       16 KiB      265 and more
//
// Each further piece may add a tile that is not full.
bool describe_pieces(std::span<const Piece> pieces, const FusionPlan& plan, bool unpack,
                     int multiprocessors, Arguments* arguments) {
  const std::uint64_t wide = std::max(plan.from_bytes, plan.to_bytes);
  std::uint64_t total = 0;
  for (const Piece& piece : pieces) total += count_of(piece, plan, unpack) * wide;
  std::uint64_t tile = kSmallTile;
  const std::uint64_t full = kBlocksEach * static_cast<std::uint64_t>(std::max(multiprocessors, 1));
  while (tile < kLargeTile && total > tile * full) tile *= 2;
  const std::uint64_t tile_units = tile / wide;
  // True because a unit has 1, 2, 4 or 8 bytes.
  HVD_CHECK(std::has_single_bit(tile_units));

  bool fits = pieces.size() <= kInlinePieces;
  std::uint64_t tiles = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::uint64_t count = count_of(pieces[i], plan, unpack);
    const std::uint64_t offset = std::uint64_t{pieces[i].offset} * plan.units;
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
    fits = fits && count <= kMost && offset <= kMost;
    // If a piece does not fit, the loop writes neither this piece nor later ones, and only counts their tiles. The caller uses
    // a table for all pieces.
    if (fits) {
      arguments->tensor[i] = number_of(pieces[i].tensor);
      arguments->offset[i] = static_cast<std::uint32_t>(offset);
      arguments->count[i] = static_cast<std::uint32_t>(count);
      arguments->first_tile[i] = static_cast<std::uint32_t>(tiles);
    }
    tiles += tiles_of(count, tile_units);
  }
  // The most blocks that a grid may have.
  HVD_CHECK(tiles <= std::numeric_limits<std::int32_t>::max());
  arguments->table = 0;
  arguments->pieces = static_cast<std::uint32_t>(pieces.size());
  arguments->tiles = static_cast<std::uint32_t>(tiles);
  arguments->tile_units = static_cast<std::uint32_t>(tile_units);
  arguments->unpack = unpack ? 1 : 0;
  return fits;
}

std::size_t table_bytes(const Arguments& arguments) {
  return arguments.pieces * sizeof(TablePiece) + arguments.tiles * sizeof(std::uint32_t);
}

// Needs the tile size and the direction that describe_pieces() has written into `arguments`, and counts the same tiles.
void write_table(std::span<const Piece> pieces, const FusionPlan& plan, const Arguments& arguments,
                 void* table) {
  auto* row = static_cast<TablePiece*>(table);
  auto* piece_of_tile = reinterpret_cast<std::uint32_t*>(row + pieces.size());
  std::uint64_t tiles = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i, ++row) {
    const std::uint64_t count = count_of(pieces[i], plan, arguments.unpack != 0);
    *row = {number_of(pieces[i].tensor), std::uint64_t{pieces[i].offset} * plan.units, count,
            tiles};
    const std::uint64_t own = tiles_of(count, arguments.tile_units);
    piece_of_tile = std::fill_n(piece_of_tile, own, static_cast<std::uint32_t>(i));
    tiles += own;
  }
}

}  // namespace hvdlite::device
