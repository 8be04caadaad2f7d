// Memory that all ranks of one host share: where collectives exchange data, and where ranks agree without messages.
// Thread: plain memory, any; who may write what is the business of those who use it. Owns: nothing (see the transports).
// Blocks: no. Throws: nothing.
//
// The window is cut into regions; a process set uses at most one region, and its use by collectives is described in
// collectives/shared_channel.h. In each region every rank of the host has flags of its own and two tiles, so small that the
// tiles in use stay in the L2 cache. A rank's flags and tiles lie together, apart from those of others, and are first touched
// by that rank, so that they lie in its NUMA node's memory. Beside them each region has memory for all: a head, and a ledger
// (engine/ledger.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hvdlite::transport {

// What one rank tells the others of its use of one region. Counts are of tiles, since the window was made.
struct WindowFlags {
  static constexpr std::size_t kInlineBytes = 48;
  static constexpr std::size_t kCarriedBytes = 64;

  // A line that carries a small payload together with the news that it is there.
  struct alignas(64) Inline {
    std::atomic<std::uint64_t> arrived;
    std::atomic<std::uint64_t> done;  // as the field below, at the time of arrival
    std::byte payload[kInlineBytes];
  };

  alignas(64) std::atomic<std::uint64_t> arrived;  // tiles whose contribution is in place
  std::atomic<std::uint64_t> reduced;              // tiles whose own slice is reduced and in place
  std::atomic<std::uint64_t> done;                 // tiles that this rank has finished with
  Inline small[2];

  // What rides with an announcement in the ledger (engine/accord.h).
  struct alignas(64) Carried {
    std::byte payload[kCarriedBytes];
  };
  Carried carried[2];
};
static_assert(sizeof(WindowFlags) == 320);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Tells the next process set that is given a region when the last one has left it.
struct WindowHead {
  alignas(64) std::atomic<
      std::
          uint64_t> departures;  // ranks that have left process sets that used it, since the beginning
};

class HostWindow {
 public:
  static constexpr std::size_t kUsualTile = 256 * 1024;  // tiles as large as usually pays

  struct Shape {
    int ranks = 1;  // of this host
    int regions = 8;
    std::size_t tile_bytes = kUsualTile;
    std::size_t ledger_bytes = 0;  // with the head

    // Tiles of at most largest_tile bytes, smaller where many ranks share a host, so that all together stay within budget.
    static Shape for_ranks(int ranks, std::size_t ledger_bytes,
                           std::size_t largest_tile = kUsualTile,
                           std::size_t budget = std::size_t{32} << 20) {
      Shape shape;
      shape.ranks = ranks;
      shape.ledger_bytes = (sizeof(WindowHead) + ledger_bytes + kPage - 1) / kPage * kPage;
      const std::size_t tiles = 2 * static_cast<std::size_t>(ranks * shape.regions);
      const std::size_t affordable = std::min(budget / tiles, largest_tile) / kPage * kPage;
      shape.tile_bytes = std::max(affordable, kSmallestTile);
      return shape;
    }
    std::size_t rank_bytes() const {  // of one rank's flags and tiles in all regions
      const std::size_t flags = static_cast<std::size_t>(regions) * sizeof(WindowFlags);
      return (flags + kPage - 1) / kPage * kPage +
             static_cast<std::size_t>(regions) * 2 * tile_bytes;
    }
    std::size_t ledgers_bytes() const { return static_cast<std::size_t>(regions) * ledger_bytes; }
    std::size_t bytes() const {
      return ledgers_bytes() + static_cast<std::size_t>(ranks) * rank_bytes();
    }
    friend bool operator==(const Shape&, const Shape&) = default;
  };

  // memory: shape.bytes() bytes on a page boundary, zero when the first rank sees them.
  HostWindow(std::byte* memory, const Shape& shape, int local_rank)
      : memory_(memory), shape_(shape), local_rank_(local_rank) {}

  int ranks() const { return shape_.ranks; }
  int local_rank() const { return local_rank_; }
  int regions() const { return shape_.regions; }
  std::size_t tile_bytes() const { return shape_.tile_bytes; }

  WindowFlags& flags(int region, int local_rank) const {
    return reinterpret_cast<WindowFlags*>(of_rank(local_rank))[region];
  }
  std::byte* tile(int region, int local_rank, int which) const {
    return of_rank(local_rank) + shape_.rank_bytes() -
           static_cast<std::size_t>(2 * (shape_.regions - region) - which) * shape_.tile_bytes;
  }
  WindowHead& head(int region) const { return *reinterpret_cast<WindowHead*>(common(region)); }
  std::byte* ledger(int region) const { return common(region) + sizeof(WindowHead); }
  // What this rank should touch first.
  std::byte* own_part() const { return of_rank(local_rank_); }
  std::size_t own_bytes() const { return shape_.rank_bytes(); }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kSmallestTile = 16 * 1024;

  std::byte* common(int region) const {
    return memory_ + static_cast<std::size_t>(region) * shape_.ledger_bytes;
  }
  std::byte* of_rank(int local_rank) const {
    return memory_ + shape_.ledgers_bytes() +
           static_cast<std::size_t>(local_rank) * shape_.rank_bytes();
  }

  std::byte* memory_;
  Shape shape_;
  int local_rank_;
};

}  // namespace hvdlite::transport
