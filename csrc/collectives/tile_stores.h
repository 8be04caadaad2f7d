// Decides which stores write tiles: ordinary stores, after which a reader fetches the lines from the writer's cache, or
// streaming stores, after which it fetches them from memory.
//
// The better choice depends on the cores' places and on the tiles:
// - The cores share a cache, and tiles are larger than the cores' own caches: the lines are in the shared cache when they are
//   read, which is fast. With ordinary stores an allreduce takes half as long as with streaming stores.
// - The same cores, small tiles: the lines are still in the writer's own cache, which gives them away more slowly. Either
//   choice may be better.
// - The cores share no cache (core complexes of one processor, sockets, virtual processors on distant cores): a line moves so
//   slowly from cache to cache that with streaming stores an allreduce needs only a fifth to a third of the time.
//
// So the choice is made by trials. From time to time the first member of a channel lets some tiles be written one way and some
// the other way, measures its own work on them, without waits, and keeps the better way.
//
//   tiles   ... usual way | ordinary: 2 not timed, 4 timed | streaming: 2 not timed, 4 timed | the better way ...
//
// After each trial that changes nothing, trials become rarer. If tiles suddenly take much more or much less time, the next
// trial comes earlier. A trial compares the shortest time of each way, because interruptions do not lengthen the shortest time.
//
// Each size class of tiles has its own trials, and its tiles are numbered separately, so that a number means the same tile on
// all members. The other members follow a word in the window, which the first member writes some tiles ahead. A member that
// reads the word too late writes a tile the other way. This costs time but does not change results, because readers see the
// same bytes.
// Pure: costs go in, a word comes out. Thread: the holder of the progress token. Owns: nothing. Blocks: no. Throws: no.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "transport/host_window.h"

namespace hvdlite::collectives {

inline constexpr std::size_t kTileClasses = transport::WindowHead::kTileClasses;

enum class TileStores : std::uint8_t { kAuto, kOrdinary, kStreaming };

// The size class of a tile. The last class has no upper limit. Tiles below the first class have no trials: kAuto writes them
// with ordinary stores.
inline std::optional<std::size_t> tile_class_of(std::size_t tile_bytes) {
  constexpr std::size_t kSmallest = 16 * 1024;
  if (tile_bytes < kSmallest) return std::nullopt;
  std::size_t number = 0;
  while (number + 1 < kTileClasses && tile_bytes >= 2 * kSmallest << number) ++number;
  return number;
}

// The trials of one class of tiles, on the first member.
class StoreTrials {
 public:
  // Does the word say that this tile is written with streaming stores? The word 0 says: ordinary stores for all tiles.
  static bool streams(std::uint64_t word, std::uint64_t tile) {
    const std::uint64_t first = word >> 1;
    if (first == 0 || tile < first || tile >= first + 2 * kTiles) return (word & 1) != 0;
    return tile >= first + kTiles;
  }

  // Records a tile's time in nanoseconds a byte. kind: equal for tiles that can be compared. Returns the word to use next.
  std::uint64_t handled(std::uint64_t tile, double cost, std::uint64_t kind);

 private:
  static constexpr std::uint64_t kWarmUp = 2;  // of each way: both buffers
  static constexpr std::uint64_t kTiles = kWarmUp + 4;
  static constexpr std::uint64_t kAhead = 3;  // tiles, until all have read the word
  static constexpr std::uint64_t kFirstTrial = 8;
  static constexpr std::uint64_t kLeastGap = 256;
  static constexpr std::uint64_t kMostGap = 4096;
  static constexpr double kGain = 0.87;     // the most time of a better way
  static constexpr double kSurprise = 1.7;  // times as long, or as short
  static constexpr int kSurprises = 6;      // in a row

  void conclude(std::uint64_t tile);
  std::uint64_t word() const { return first_ << 1 | (streams_ ? 1 : 0); }

  bool streams_ = false;
  std::uint64_t first_ = 0;  // of the trial under way, or to come; 0: none
  std::uint64_t next_ = kFirstTrial;
  std::uint64_t kind_ = 0;  // of the tiles of the last trial
  bool kind_known_ = false;
  bool mixed_ = false;               // the trial met tiles of another kind
  std::array<double, 2> best_ = {};  // by way; 0: none yet
  // The cost that the last trial found for the way that is in use since, and how many tiles in a row had a very different cost.
  double usual_ = 0;
  int surprises_ = 0;
  std::uint64_t gap_ = kLeastGap;
  std::uint64_t earliest_ = 0;  // the tile from which a surprise may start the next trial
};

}  // namespace hvdlite::collectives
