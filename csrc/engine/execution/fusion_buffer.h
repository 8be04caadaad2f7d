// Page-aligned memory for fusion buffers, and for data that no caller of this rank gets because the rank has joined. The pool
// reuses memory, because touching fresh pages takes more time than moving the data.
// Thread: the holder of the progress token. Owns: returned memory. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

namespace hvdlite::engine {

class FusionBufferPool {
 public:
  // Keeps at most `keep_bytes` of returned memory.
  explicit FusionBufferPool(std::size_t keep_bytes) : keep_bytes_(keep_bytes) {}
  ~FusionBufferPool();
  FusionBufferPool(const FusionBufferPool&) = delete;
  FusionBufferPool& operator=(const FusionBufferPool&) = delete;

  struct ReturnToPool {
    FusionBufferPool* pool = nullptr;
    std::size_t capacity = 0;
    void operator()(std::byte* data) const { pool->give_back(data, capacity); }
  };
  // A buffer, which returns to the pool when the lease is destroyed. The pool must outlive the lease.
  using Lease = std::unique_ptr<std::byte, ReturnToPool>;

  // Gives at least `bytes` bytes, uninitialised.
  Lease get(std::size_t bytes);

 private:
  void give_back(std::byte* data, std::size_t capacity);

  std::size_t keep_bytes_;
  std::size_t kept_ = 0;
  std::multimap<std::size_t, std::byte*> free_;  // by capacity
};

}  // namespace hvdlite::engine
