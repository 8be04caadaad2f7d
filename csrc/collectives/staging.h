// Scratch memory of one collective. It is taken once, at construction, and given out in pieces that start on cache lines. The
// memory comes from a cache that outlives the operation, because the page faults of fresh memory take longer than the data's
// way through the memory.
// Thread: the holder of the progress token. Owns: the memory. Blocks: no. Throws: std::bad_alloc at
// construction.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "base/cache_line.h"
#include "base/error.h"

namespace hvdlite::collectives {

// A few blocks of memory that operations gave back, for later operations.
class StagingCache {
 public:
  struct Block {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };

  StagingCache() = default;
  StagingCache(const StagingCache&) = delete;
  StagingCache& operator=(const StagingCache&) = delete;
  ~StagingCache() {
    for (const Block& block : kept_) release(block);
  }

  // A block of at least `bytes`, uninitialised: the smallest kept one that fits, or a new one.
  Block take(std::size_t bytes) {
    Block* best = nullptr;
    for (Block& block : kept_) {
      if (block.bytes >= bytes && (best == nullptr || block.bytes < best->bytes)) best = &block;
    }
    if (best != nullptr) return std::exchange(*best, {});
    return {static_cast<std::byte*>(::operator new(bytes, kAlignment)), bytes};
  }

  // Keeps the block if it has at most kLargestKept bytes, and one of the places is free or holds a smaller block, which is then
  // freed. Otherwise frees the block.
  void give_back(Block block) {
    Block* smallest = &kept_[0];
    for (Block& kept : kept_) {
      if (kept.bytes < smallest->bytes) smallest = &kept;
    }
    if (block.bytes <= kLargestKept && block.bytes > smallest->bytes) std::swap(block, *smallest);
    release(block);
  }

 private:
  static constexpr std::align_val_t kAlignment{base::kCacheLine};
  // More than what the lanes of one direct allreduce need with the usual segments on up to 512 ranks (direct_reduction.cc).
  static constexpr std::size_t kLargestKept = std::size_t{10} << 20;

  static void release(const Block& block) { ::operator delete(block.memory, kAlignment); }

  std::array<Block, 6> kept_;  // at most 60 MiB in all
};

class Staging {
 public:
  // Room for `pieces` calls of take(), of which each gives `bytes`, uninitialised.
  Staging(std::shared_ptr<StagingCache> cache, std::size_t pieces, std::size_t bytes)
      : cache_(std::move(cache)), stride_(base::round_up_to_cache_lines(bytes)) {
    if (pieces * stride_ > 0) block_ = cache_->take(pieces * stride_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    if (block_.memory != nullptr) cache_->give_back(block_);
  }

  std::byte* take() {
    if (stride_ == 0) return nullptr;  // pieces of zero bytes
    HVD_CHECK(used_ + stride_ <= block_.bytes);
    std::byte* const piece = block_.memory + used_;
    used_ += stride_;
    return piece;
  }

 private:
  std::shared_ptr<StagingCache> cache_;
  std::size_t stride_;
  std::size_t used_ = 0;
  StagingCache::Block block_;
};

}  // namespace hvdlite::collectives
