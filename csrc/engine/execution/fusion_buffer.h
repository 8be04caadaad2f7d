// Page-aligned memory for fusion buffers and scratch outputs. The pool reuses memory, because touching fresh pages takes more
// time than moving the data.
// Thread: the holder of the progress token. Owns: returned memory. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <cstddef>
#include <map>
#include <utility>

namespace hvdlite::engine {

class FusionBufferPool {
 public:
  // Keeps at most `keep_bytes` of returned memory.
  explicit FusionBufferPool(std::size_t keep_bytes) : keep_bytes_(keep_bytes) {}
  ~FusionBufferPool();
  FusionBufferPool(const FusionBufferPool&) = delete;
  FusionBufferPool& operator=(const FusionBufferPool&) = delete;

  // Memory of the pool, which must outlive the lease.
  class Lease {
   public:
    Lease() = default;
    Lease(FusionBufferPool* pool, void* data, std::size_t capacity)
        : pool_(pool), data_(data), capacity_(capacity) {}
    Lease(Lease&& other) noexcept { swap(other); }
    Lease& operator=(Lease&& other) noexcept {
      swap(other);
      return *this;
    }
    ~Lease() {
      if (data_ != nullptr) pool_->give_back(data_, capacity_);
    }
    std::byte* data() const { return static_cast<std::byte*>(data_); }

   private:
    void swap(Lease& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(data_, other.data_);
      std::swap(capacity_, other.capacity_);
    }
    FusionBufferPool* pool_ = nullptr;
    void* data_ = nullptr;
    std::size_t capacity_ = 0;
  };

  // Gives at least `bytes` bytes, uninitialised.
  Lease get(std::size_t bytes);

 private:
  void give_back(void* data, std::size_t capacity);

  std::size_t keep_bytes_;
  std::size_t kept_ = 0;
  std::multimap<std::size_t, void*> free_;  // by capacity
};

}  // namespace hvdlite::engine
