// Memory for results that outlive their operation. The cache reuses it, because the page fault on a new page takes longer than
// filling a page that is mapped already.
// Thread: any; one lock, held for a short search. Owns: returned memory. Blocks: while the system maps or unmaps pages.
// Throws: std::bad_alloc.
//
//   get ──► Block (a result, then the user's array over it) ──► destroyed, on any thread ──► kept, unless over the limit
//    ▲                                                                                        │
//    └────────────────────── the best fit among those kept, at most a quarter too large ◄─────┘
//
// Results into which other ranks of the host may store lie in memory that these ranks map (transport/result_memory.h), if the
// results are not too large (`most_shared`) and there is room.
//
// If the returned blocks exceed `keep_bytes`, the cache frees those that were returned first. A block that alone exceeds
// `keep_bytes` is freed as soon as it is returned. A block keeps the cache alive, so arrays may outlive the engine.
//
// Fork: a child may inherit the lock in the locked state, and a list that was half changed, because another thread of the
// parent held the lock. So a thread that returns a block stops trying to take the lock after some tries, and frees the memory
// instead. In such a child this happens every time, and elsewhere almost never. A cache that is destroyed in such a child leaks
// the kept blocks.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "transport/result_memory.h"

namespace hvdlite::engine {

class OutputCache : public std::enable_shared_from_this<OutputCache> {
 public:
  // Smaller blocks come from malloc, which reuses them well.
  static constexpr std::size_t kSmallest = transport::ResultMemory::kSmallest;

  // Keeps at most `keep_bytes` of returned memory. shared: memory that other ranks map, for blocks of up to `most_shared`
  // bytes; null: there is none.
  explicit OutputCache(std::size_t keep_bytes,
                       std::shared_ptr<transport::ResultMemory> shared = nullptr,
                       std::size_t most_shared = 0)
      : keep_bytes_(keep_bytes), shared_(std::move(shared)), most_shared_(most_shared) {}
  ~OutputCache();
  OutputCache(const OutputCache&) = delete;
  OutputCache& operator=(const OutputCache&) = delete;

  struct ReturnToCache {
    std::shared_ptr<OutputCache> home{};  // null: the block is malloc's
    std::size_t capacity = 0;
    bool shared = false;  // other ranks map it
    void operator()(void* data) const noexcept;
  };
  // If a transfer may still write to a block's memory, the owner must call release(), which leaks the block.
  using Block = std::unique_ptr<void, ReturnToCache>;

  // Returns a block of at least `bytes` uninitialised bytes; a block of 0 bytes has an address, too. Blocks are aligned to 64
  // bytes, and from kSmallest on to a page. open: takes memory that other ranks map, if possible, so that they can store into
  // the block.
  Block get(std::size_t bytes, bool open = false);
  // Frees the kept blocks. Blocks that are returned later are freed at once.
  void close();

 private:
  struct FreeBlock {
    void* data;
    std::size_t capacity;
    bool shared;
  };
  // Replaces `wanted` by the best fit for its capacity among the kept blocks (shared ones or not, as wanted.shared says).
  // Returns false if none fits.
  bool take(FreeBlock& wanted);
  void give_back(FreeBlock memory) noexcept;
  // With the lock. Returns false if the list cannot grow.
  bool keep(const FreeBlock& memory) noexcept;
  void unmap(const FreeBlock& memory) const noexcept;
  static std::size_t capacity_for(std::size_t bytes);

  std::mutex mutex_;
  std::size_t keep_bytes_;
  std::size_t kept_bytes_ = 0;
  std::vector<FreeBlock> kept_;  // in order of return, the oldest first
  const std::shared_ptr<transport::ResultMemory> shared_;
  const std::size_t most_shared_;
};

}  // namespace hvdlite::engine
