// Memory that all ranks of one host share. Collectives exchange data in it, and ranks agree in it without messages.
// Thread: plain memory, any; the code that uses a piece of memory says which rank may write it. Owns: its memory and the result
// memory; other objects may own them, too (shared_ptr). Blocks: no. Throws: only over() throws.
//
// The window consists of regions. A process set uses one region for its collectives, and two if its members are on several
// hosts (engine/negotiation/regions.h); the set of all ranks takes as many again for GPU tensors. collectives/shared_channel.h
// describes the use of a region. In each region every rank of the host has its own flags and two tiles. Tiles are small enough
// that the tiles in use stay in the caches. A rank's flags and tiles lie together, apart from those of other ranks, and that
// rank touches them first, so that they lie in its NUMA node's memory. Each region also has memory for all ranks: a head, and a
// ledger (engine/negotiation/ledger.h). Beside the regions, each rank has two rings for each other rank: one for the messages
// that the other rank sends it (host_mail.h), and one for payloads (payload_stream.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/cache_line.h"
#include "transport/mail_ring.h"
#include "transport/payload_stream.h"
#include "transport/result_memory.h"
#include "transport/shared_memory.h"

namespace hvdlite::transport {

// What one rank tells the others about its use of one region. All counters count tiles, from the creation of the window on.
struct WindowFlags {
  static constexpr std::size_t kInlineBytes = 48;

  // A cache line that carries a small payload together with the flag that announces it.
  struct alignas(base::kCacheLine) Inline {
    std::atomic<std::uint64_t> arrived;
    std::atomic<std::uint64_t> done;  // as the field below, at the time of arrival
    std::byte payload[kInlineBytes];
  };

  alignas(base::kCacheLine)
      std::atomic<std::uint64_t> arrived;  // tiles that hold this rank's contribution
  std::atomic<std::uint64_t> reduced;      // tiles whose slice this rank has reduced
  std::atomic<std::uint64_t> done;         // tiles that this rank does not read any more
  Inline small[2];
  // result[t & 1] belongs to the operation that begins with tile t. It is the offset of the operation's result in this rank's
  // ResultMemory, plus 1. 0: the result lies elsewhere.
  alignas(base::kCacheLine) std::atomic<std::uint64_t> result[2];
};
static_assert(sizeof(WindowFlags) == 256);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// What all ranks that use a region share.
struct WindowHead {
  static constexpr std::size_t kTileClasses = 6;

  // A rank adds 1 when it has stopped using the region for a process set (~SharedChannel). The count begins at 0 when the
  // window is created. From it the next set in the region knows when all ranks of the sets before it have stopped.
  alignas(base::kCacheLine) std::atomic<std::uint64_t> departures;
  // The kind of stores that write tiles, by the tiles' class (collectives/tile_stores.h). The set's first member stores it.
  alignas(base::kCacheLine) std::atomic<std::uint64_t> tile_stores[kTileClasses];
};

class HostWindow {
 public:
  // Two such tiles fill the L2 cache of many processors. So when a reader fetches a line, the line has already moved from the
  // writer's own cache to the cache that both cores share, which is faster to read.
  static constexpr std::size_t kUsualTile = 512 * 1024;
  static constexpr std::size_t kUsualMail = 64 * 1024;
  static constexpr std::size_t kUsualPayload = 256 * 1024;

  struct Layout {
    int ranks = 1;  // of this host
    int regions = 8;
    std::size_t tile_bytes = kUsualTile;
    std::size_t ledger_bytes = 0;  // including the head
    // The data of each ring of a pair: powers of two.
    std::size_t mail_bytes = kUsualMail;
    std::size_t payload_bytes = kUsualPayload;

    // A tile has at most largest_tile bytes. If many ranks share a host, tiles are smaller, so that all tiles together stay
    // within the budget. But a tile has at least kSmallestTile, so from 129 ranks on the tiles take more than the usual budget.
    static Layout for_ranks(int ranks, std::size_t ledger_bytes,
                            std::size_t largest_tile = kUsualTile,
                            std::size_t budget = std::size_t{32} << 20) {
      Layout shape;
      shape.ranks = ranks;
      shape.ledger_bytes = (sizeof(WindowHead) + ledger_bytes + kPage - 1) / kPage * kPage;
      const std::size_t tiles = 2 * static_cast<std::size_t>(ranks * shape.regions);
      const std::size_t affordable = std::min(budget / tiles, largest_tile) / kPage * kPage;
      shape.tile_bytes = std::max(affordable, kSmallestTile);
      const auto share = [&](std::size_t all) {
        return std::bit_floor(all / static_cast<std::size_t>(ranks));
      };
      shape.mail_bytes = std::clamp(share(kMailOfRank), kSmallestMail, kUsualMail);
      shape.payload_bytes = std::clamp(share(kPayloadOfRank), kSmallestPayload, kUsualPayload);
      return shape;
    }
    // The size of an input that a rank writes before the ranks have agreed (collectives/prepared.h). Every rank reads the
    // inputs of all, so more ranks mean smaller inputs.
    std::size_t prepared_bytes() const {
      const std::size_t share = kPreparedOfAll / static_cast<std::size_t>(ranks);
      return std::max(std::min(share, tile_bytes / 8) / base::kCacheLine, std::size_t{1}) *
             base::kCacheLine;
    }
    // The bytes of one rank's flags and prepared inputs in all regions.
    std::size_t small_bytes() const {
      return static_cast<std::size_t>(regions) * (sizeof(WindowFlags) + 2 * prepared_bytes());
    }
    // The bytes of both rings from one rank to another.
    std::size_t rings_bytes() const {
      return MailRing::bytes_for(mail_bytes) + PayloadRing::bytes_for(payload_bytes);
    }
    // The bytes of one rank's flags, prepared inputs, rings and tiles.
    std::size_t rank_bytes() const {
      const std::size_t before_tiles =
          small_bytes() + static_cast<std::size_t>(ranks) * rings_bytes();
      return (before_tiles + kPage - 1) / kPage * kPage +
             static_cast<std::size_t>(regions) * 2 * tile_bytes;
    }
    std::size_t ledgers_bytes() const { return static_cast<std::size_t>(regions) * ledger_bytes; }
    std::size_t bytes() const {
      return ledgers_bytes() + static_cast<std::size_t>(ranks) * rank_bytes();
    }
    friend bool operator==(const Layout&, const Layout&) = default;
  };

  // memory: shape.bytes() bytes on a page boundary, zero at first.
  HostWindow(std::shared_ptr<std::byte> memory, const Layout& shape, int local_rank)
      : memory_(std::move(memory)), shape_(shape), local_rank_(local_rank) {}
  // For ranks that are processes: a window over memory that all of them map, and that nobody has used. Reserves and touches
  // this rank's part, and the heads and ledgers of all regions if this rank is the host's first rank. So later use cannot run
  // out of memory, and the pages lie on this rank's NUMA node. Throws Error(System) if the machine lacks the memory.
  static std::unique_ptr<HostWindow> over(std::shared_ptr<SharedMemory> memory, const Layout& shape,
                                          int local_rank);

  int ranks() const { return shape_.ranks; }
  int local_rank() const { return local_rank_; }
  int regions() const { return shape_.regions; }
  std::size_t tile_bytes() const { return shape_.tile_bytes; }
  std::size_t prepared_bytes() const { return shape_.prepared_bytes(); }

  WindowFlags& flags(int region, int local_rank) const {
    return reinterpret_cast<WindowFlags*>(of_rank(local_rank))[region];
  }
  std::byte* prepared(int region, int local_rank, int which) const {
    return of_rank(local_rank) + static_cast<std::size_t>(shape_.regions) * sizeof(WindowFlags) +
           static_cast<std::size_t>(2 * region + which) * shape_.prepared_bytes();
  }
  std::byte* tile(int region, int local_rank, int which) const {
    return of_rank(local_rank) + shape_.rank_bytes() -
           static_cast<std::size_t>(2 * (shape_.regions - region) - which) * shape_.tile_bytes;
  }
  // The rings of control messages and of payloads from one rank to another.
  MailRing mail(int from, int to) const { return {rings(from, to), shape_.mail_bytes}; }
  PayloadRing payloads(int from, int to) const {
    return {rings(from, to) + MailRing::bytes_for(shape_.mail_bytes), shape_.payload_bytes};
  }
  WindowHead& head(int region) const { return *reinterpret_cast<WindowHead*>(common(region)); }
  std::byte* ledger(int region) const { return common(region) + sizeof(WindowHead); }
  // Sets the result memory beside the window; null if this host has none. Either all ranks of a host set it, or none of them.
  void set_results(std::shared_ptr<ResultMemory> results) { results_ = std::move(results); }
  const std::shared_ptr<ResultMemory>& results() const { return results_; }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kPreparedOfAll = 64 * 1024;
  static constexpr std::size_t kSmallestTile = 16 * 1024;
  static constexpr std::size_t kMailOfRank = 256 * 1024;
  static constexpr std::size_t kSmallestMail = 4 * 1024;
  static constexpr std::size_t kPayloadOfRank = 512 * 1024;
  static constexpr std::size_t kSmallestPayload = 16 * 1024;

  std::byte* common(int region) const {
    return memory_.get() + static_cast<std::size_t>(region) * shape_.ledger_bytes;
  }
  std::byte* rings(int from, int to) const {
    return of_rank(to) + shape_.small_bytes() +
           static_cast<std::size_t>(from) * shape_.rings_bytes();
  }
  std::byte* of_rank(int local_rank) const {
    return memory_.get() + shape_.ledgers_bytes() +
           static_cast<std::size_t>(local_rank) * shape_.rank_bytes();
  }

  std::shared_ptr<std::byte> memory_;
  Layout shape_;
  int local_rank_;
  std::shared_ptr<ResultMemory> results_;
};

}  // namespace hvdlite::transport
