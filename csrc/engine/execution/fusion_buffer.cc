// A lease remembers the capacity of its buffer, because give_back() keeps the buffer in a map by its capacity. get() takes the
// smallest kept buffer that is large enough, unless that buffer is far too large. If a training step fuses other tensors than
// the last step, it often finds fitting buffers nevertheless, because there are few different capacities:
//
//    asked         1 B     5000 B   700 KiB   1.1 MiB     9 MiB    65 MiB
//    capacity      4 KiB   8 KiB    1 MiB     1.125 MiB   9 MiB    72 MiB
#include "engine/execution/fusion_buffer.h"

#include <bit>
#include <cstdlib>
#include <new>

namespace hvdlite::engine {
namespace {

constexpr std::size_t kPage = 4096;

// Up to 1 MiB the capacity is a power of two and at least a page. Above 1 MiB, `bytes` lies between two powers of two, and the
// capacity is `bytes` rounded up to a multiple of an eighth of the smaller power. So less than an eighth of a new large buffer
// is unused, and operations of similar sizes use the same buffers again.
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
  // A free buffer of more than twice this capacity is left for larger operations.
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

// Runs in destructors, so it throws nothing: a buffer that cannot be kept is freed.
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
