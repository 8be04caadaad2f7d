// Memory that all ranks of one host share: where collectives exchange data, and where ranks agree without messages.
// Thread: plain memory, any; who may write what is the business of those who use it. Owns: nothing (see the transports).
// Blocks: no. Throws: nothing.
//
// The window is cut into regions; a process set uses at most one region, and its use by collectives is described in
// collectives/shared_channel.h. In each region every rank of the host has flags of its own and two tiles, so small that the
// tiles in use stay in the caches. A rank's flags and tiles lie together, apart from those of others, and are first touched
// by that rank, so that they lie in its NUMA node's memory. Beside them each region has memory for all: a head, and a ledger
// (engine/negotiation/ledger.h). Apart from the regions each rank has two rings for each other rank: of
// what that one tells it (host_mail.h), and of what that one sends it (payload_stream.h).
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

namespace hvdlite::transport {

// What one rank tells the others of its use of one region. Counts are of tiles, since the window was made.
struct WindowFlags {
  static constexpr std::size_t kInlineBytes = 48;

  // A line that carries a small payload together with the news that it is there.
  struct alignas(base::kCacheLine) Inline {
    std::atomic<std::uint64_t> arrived;
    std::atomic<std::uint64_t> done;  // as the field below, at the time of arrival
    std::byte payload[kInlineBytes];
  };

  alignas(
      base::kCacheLine) std::atomic<std::uint64_t> arrived;  // tiles whose contribution is in place
  std::atomic<std::uint64_t> reduced;  // tiles whose own slice is reduced and in place
  std::atomic<std::uint64_t> done;     // tiles that this rank has finished with
  Inline small[2];
  // Where in this rank's ResultMemory the result lies of the operation that begins with tile t, plus 1, in t & 1; 0: elsewhere.
  alignas(base::kCacheLine) std::atomic<std::uint64_t> result[2];
};
static_assert(sizeof(WindowFlags) == 256);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// What all ranks that use a region know of it together.
struct WindowHead {
  static constexpr std::size_t kTileClasses = 6;

  // Ranks that have left process sets that used it, since the beginning: tells the next set when the last one has left.
  alignas(base::kCacheLine) std::atomic<std::uint64_t> departures;
  // Which stores write tiles, by their class (collectives/tile_stores.h). Written by the set's first member.
  alignas(base::kCacheLine) std::atomic<std::uint64_t> tile_stores[kTileClasses];
};

class HostWindow {
 public:
  // Two of them fill the L2 cache of many processors: what a reader fetches has then left its writer's own cache for the one
  // that both share, from where it comes faster.
  static constexpr std::size_t kUsualTile = 512 * 1024;
  static constexpr std::size_t kUsualMail = 64 * 1024;
  static constexpr std::size_t kUsualPayload = 256 * 1024;

  struct Shape {
    int ranks = 1;  // of this host
    int regions = 8;
    std::size_t tile_bytes = kUsualTile;
    std::size_t ledger_bytes = 0;  // with the head
    // Of the data of each ring of a pair: powers of two.
    std::size_t mail_bytes = kUsualMail;
    std::size_t payload_bytes = kUsualPayload;

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
      const auto share = [&](std::size_t all) {
        return std::bit_floor(all / static_cast<std::size_t>(ranks));
      };
      shape.mail_bytes = std::clamp(share(kMailOfRank), kSmallestMail, kUsualMail);
      shape.payload_bytes = std::clamp(share(kPayloadOfRank), kSmallestPayload, kUsualPayload);
      return shape;
    }
    // Of a payload that is there before the ranks have agreed (collectives/allreduce_inline.h). All read all of them, so the
    // more ranks the smaller.
    std::size_t prepared_bytes() const {
      const std::size_t share = kPreparedOfAll / static_cast<std::size_t>(ranks);
      return std::max(std::min(share, tile_bytes / 8) / base::kCacheLine, std::size_t{1}) *
             base::kCacheLine;
    }
    // Of one rank's flags and payloads in all regions.
    std::size_t small_bytes() const {
      return static_cast<std::size_t>(regions) * (sizeof(WindowFlags) + 2 * prepared_bytes());
    }
    // Of what comes from one rank to one.
    std::size_t rings_bytes() const {
      return MailRing::bytes_for(mail_bytes) + PayloadRing::bytes_for(payload_bytes);
    }
    // Those, the rings, and its tiles.
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
    friend bool operator==(const Shape&, const Shape&) = default;
  };

  // memory: shape.bytes() bytes on a page boundary, zero when the first rank sees them.
  HostWindow(std::byte* memory, const Shape& shape, int local_rank)
      : memory_(memory), shape_(shape), local_rank_(local_rank) {}

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
  // Through which one rank tells another, and sends it payloads.
  MailRing mail(int from, int to) const { return MailRing::at(rings(from, to), shape_.mail_bytes); }
  PayloadRing payloads(int from, int to) const {
    return PayloadRing::at(rings(from, to) + MailRing::bytes_for(shape_.mail_bytes),
                           shape_.payload_bytes);
  }
  WindowHead& head(int region) const { return *reinterpret_cast<WindowHead*>(common(region)); }
  std::byte* ledger(int region) const { return common(region) + sizeof(WindowHead); }
  // Beside the window, where the host has it: null, or not, on all its ranks alike.
  void set_results(std::shared_ptr<ResultMemory> results) { results_ = std::move(results); }
  const std::shared_ptr<ResultMemory>& results() const { return results_; }
  // The heads and ledgers of all regions, which the host's first rank should touch first.
  std::byte* common_part() const { return common(0); }
  std::size_t common_bytes() const { return shape_.ledgers_bytes(); }
  // What this rank should touch first.
  std::byte* own_part() const { return of_rank(local_rank_); }
  std::size_t own_bytes() const { return shape_.rank_bytes(); }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kPreparedOfAll = 64 * 1024;
  static constexpr std::size_t kSmallestTile = 16 * 1024;
  static constexpr std::size_t kMailOfRank = 256 * 1024;
  static constexpr std::size_t kSmallestMail = 4 * 1024;
  static constexpr std::size_t kPayloadOfRank = 512 * 1024;
  static constexpr std::size_t kSmallestPayload = 16 * 1024;

  std::byte* common(int region) const {
    return memory_ + static_cast<std::size_t>(region) * shape_.ledger_bytes;
  }
  std::byte* rings(int from, int to) const {
    return of_rank(to) + shape_.small_bytes() +
           static_cast<std::size_t>(from) * shape_.rings_bytes();
  }
  std::byte* of_rank(int local_rank) const {
    return memory_ + shape_.ledgers_bytes() +
           static_cast<std::size_t>(local_rank) * shape_.rank_bytes();
  }

  std::byte* memory_;
  Shape shape_;
  int local_rank_;
  std::shared_ptr<ResultMemory> results_;
};

}  // namespace hvdlite::transport
