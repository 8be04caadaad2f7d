// Memory for results that outlive their operation, recycled: to fault in a fresh page takes longer than to fill a warm one.
// Thread: any; one lock, held for a few stores. Owns: the memory that came back. Blocks: while the system makes or takes pages.
// Throws: std::bad_alloc.
//
//   get ──► Block (a result, then the user's array over it) ──► destroyed, on any thread ──► kept, unless over the limit
//    ▲                                                                                        │
//    └────────────────────── the best fit among those kept, at most a quarter too large ◄─────┘
//
// Results into which other ranks of the host can store lie in memory that they map (transport/result_memory.h): blocks that are
// not too large, while there is room.
//
// What came back last is kept longest. A block keeps the cache alive, so arrays may outlive the engine.
//
// Fork: a child may inherit the lock in another thread's hands, and a list half changed. So whoever returns a block gives up
// on the lock after a while, and frees the memory instead: in such a child always, elsewhere hardly ever.
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
  // Smaller blocks are malloc's, which recycles them well.
  static constexpr std::size_t kSmallest = transport::ResultMemory::kSmallest;

  // Keeps at most `keep_bytes` of returned memory. shared: for blocks of at most so many bytes; null: there is none.
  explicit OutputCache(std::size_t keep_bytes,
                       std::shared_ptr<transport::ResultMemory> shared = nullptr,
                       std::size_t most_shared = 0)
      : keep_bytes_(keep_bytes), shared_(std::move(shared)), most_shared_(most_shared) {}
  ~OutputCache();
  OutputCache(const OutputCache&) = delete;
  OutputCache& operator=(const OutputCache&) = delete;

  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept { swap(other); }
    Block& operator=(Block&& other) noexcept {
      Block moved(std::move(other));
      swap(moved);
      return *this;
    }
    ~Block();
    void* data() const { return data_; }
    // Never freed: a transfer may still write to it.
    void abandon() { data_ = nullptr; }

   private:
    friend class OutputCache;
    void swap(Block& other) noexcept {
      std::swap(home_, other.home_);
      std::swap(data_, other.data_);
      std::swap(capacity_, other.capacity_);
      std::swap(shared_, other.shared_);
    }
    std::shared_ptr<OutputCache> home_;  // null: from malloc
    void* data_ = nullptr;
    std::size_t capacity_ = 0;
    bool shared_ = false;  // others map it
  };

  // At least `bytes` bytes (and an address for none), uninitialised; aligned to 64 bytes, from kSmallest on to a page. open:
  // others shall store into it, if they can.
  Block get(std::size_t bytes, bool open = false);
  // Frees what is kept, and from now on what comes back.
  void close();

 private:
  struct FreeBlock {
    void* data;
    std::size_t capacity;
    bool shared;
  };
  // Fills a block with the best fit among those kept. False if there is none.
  bool take(std::size_t wanted, Block& block);
  // Blocks that exist.
  void expect_one_more();
  void expect_one_less();
  void give_back(FreeBlock memory) noexcept;
  void unmap(const FreeBlock& memory) const noexcept;
  static std::size_t capacity_for(std::size_t bytes);

  std::mutex mutex_;
  std::size_t keep_bytes_;
  std::size_t kept_bytes_ = 0;
  std::size_t mapped_ = 0;       // blocks that exist, kept or in use
  std::vector<FreeBlock> kept_;  // by time of return, the oldest first
  const std::shared_ptr<transport::ResultMemory> shared_;
  const std::size_t most_shared_;
};

}  // namespace hvdlite::engine
