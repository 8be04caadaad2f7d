// Scratch memory of one collective: allocated once, at construction, and handed out in pieces that
// start on cache lines.
// Thread: its collective's. Owns: the memory. Blocks: no. Throws: std::bad_alloc at construction.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "base/error.h"

namespace hvdlite::collectives {

class Staging {
 public:
  static constexpr std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

  // Room for `pieces` calls of take(), each good for `bytes`. The memory is not touched before it
  // is used.
  Staging(std::size_t pieces, std::size_t bytes)
      : stride_(round_up(bytes)),
        size_(pieces * stride_),
        memory_(size_ == 0 ? nullptr : static_cast<std::byte*>(::operator new(size_, kCacheLine))) {
  }

  std::byte* take() {
    if (memory_ == nullptr) return nullptr;  // pieces of zero bytes
    HVD_CHECK(used_ < size_);
    std::byte* const piece = memory_.get() + used_;
    used_ += stride_;
    return piece;
  }

 private:
  static constexpr std::align_val_t kCacheLine{64};
  struct Delete {
    void operator()(std::byte* memory) const { ::operator delete(memory, kCacheLine); }
  };

  std::size_t stride_;
  std::size_t size_;
  std::size_t used_ = 0;
  std::unique_ptr<std::byte, Delete> memory_;
};

}  // namespace hvdlite::collectives
