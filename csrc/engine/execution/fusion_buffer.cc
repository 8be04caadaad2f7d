#include "engine/execution/fusion_buffer.h"

#include <bit>
#include <cstdlib>
#include <new>

namespace hvdlite::engine {
namespace {

constexpr std::size_t kPage = 4096;

// Rounds up to a power of two of at least a page, and above 1 MiB to a multiple of an eighth of the next smaller power of two.
// So less than an eighth of a new large buffer is unused, and operations of similar sizes use the same buffers again.
std::size_t capacity_for(std::size_t bytes) {
  const std::size_t power = std::bit_ceil(bytes < kPage ? kPage : bytes);
  if (power <= (std::size_t{1} << 20)) return power;
  const std::size_t step = power / 16;
  return (bytes + step - 1) / step * step;
}

}  // namespace

FusionBufferPool::~FusionBufferPool() {
  for (const auto& [capacity, data] : free_) std::free(data);
}

FusionBufferPool::Lease FusionBufferPool::get(std::size_t bytes) {
  const std::size_t capacity = capacity_for(bytes);
  const auto found = free_.lower_bound(capacity);
  // A buffer of more than twice this capacity stays free for larger operations.
  if (found != free_.end() && found->first <= 2 * capacity) {
    Lease buffer(found->second, {this, found->first});
    kept_ -= found->first;
    free_.erase(found);
    return buffer;
  }
  void* data = std::aligned_alloc(kPage, capacity);
  if (data == nullptr) throw std::bad_alloc();
  return Lease(static_cast<std::byte*>(data), {this, capacity});
}

void FusionBufferPool::give_back(std::byte* data, std::size_t capacity) {
  try {
    if (kept_ + capacity <= keep_bytes_) {
      free_.emplace(capacity, data);
      kept_ += capacity;
      return;
    }
  } catch (const std::bad_alloc&) {  // the list cannot grow
  }
  std::free(data);
}

}  // namespace hvdlite::engine
