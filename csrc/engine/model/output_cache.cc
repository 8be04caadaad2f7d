// Where get() finds memory for a result, in this order (open: other ranks of the host may store into the result):
//
//    below kSmallest          malloc; the block returns to malloc, and never to the cache
//    open, not too large      1  a kept block that other ranks map     it becomes "in use" again in the ResultMemory
//                             2  a new block of the ResultMemory       if there is room
//    otherwise, or no room    3  a kept block of private memory
//                             4  a new mapping
//
// If other ranks map a kept block, only open results use it: any other result must lie where no other rank can store
// (Engine::new_output).
//
// Mapping and unmapping take long, so get(), give_back() and close() do both without the lock. They hold the lock only to
// search and change the list, and, when they keep a block of the ResultMemory, to mark it there as not in use. Destroying a
// block must not throw: if the list cannot grow, give_back() frees the block.
//
// Each capacity is a multiple of kSmallest / 8 (128 KiB), and so a whole number of pages. Therefore map() can unmap what lies
// behind the block.
#include "engine/model/output_cache.h"

#include <sys/mman.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "base/cache_line.h"
#include "base/thread.h"

namespace hvdlite::engine {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Some frameworks copy an array whose memory is not aligned to a cache line.
constexpr std::size_t kAlignment = base::kCacheLine;
// A thread that runs holds the lock for a much shorter time than these tries take.
constexpr int kTriesForTheLock = 10'000;

// Maps page-aligned memory. A mapping that is at least as large as a huge page begins at a huge page's boundary, so that the
// first touches cause up to 500 times fewer page faults.
//
//    mapped, if large:   | head: unmapped again | bytes | spare - head: unmapped again |
//                                               ^ a multiple of kHugePage
void* map(std::size_t bytes) {
  const std::size_t spare = bytes >= kHugePage ? kHugePage : 0;
  void* mapped =
      mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  if (spare == 0) return mapped;
  auto* start = static_cast<std::byte*>(mapped);
  const std::size_t head = (~reinterpret_cast<std::uintptr_t>(start) + 1) % kHugePage;
  if (head > 0) munmap(start, head);
  munmap(start + head + bytes, spare - head);
  madvise(start + head, bytes, MADV_HUGEPAGE);  // a kernel without huge pages uses small ones
  return start + head;
}

// Aligned memory of malloc, with malloc's own address in front of it. (aligned_alloc of glibc before 2.38 often does not reuse
// freed memory, glibc's bug 14581: a program that made results of 400 kB again and again grew by each of them.)
//
//    own: | up to 63 bytes | address of own | data, at a multiple of 64 ...
void* new_aligned(std::size_t bytes) {
  void* const own = std::malloc(sizeof(void*) + kAlignment + bytes);
  if (own == nullptr) throw std::bad_alloc();
  const auto after = reinterpret_cast<std::uintptr_t>(own) + sizeof(void*);
  auto* const data = static_cast<std::byte*>(own) + sizeof(void*) + (~after + 1) % kAlignment;
  reinterpret_cast<void**>(data)[-1] = own;
  return data;
}

void free_aligned(void* data) { std::free(static_cast<void**>(data)[-1]); }

}  // namespace

OutputCache::~OutputCache() {
  // No other thread uses the cache any more. So if the lock is taken, a thread of the parent held it when this process was
  // forked. In that case the kept blocks leak.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (const FreeBlock& memory : kept_) unmap(memory);
}

void OutputCache::unmap(const FreeBlock& memory) const noexcept {
  if (memory.shared) {
    shared_->give_back(memory.data);
  } else {
    munmap(memory.data, memory.capacity);
  }
}

void OutputCache::ReturnToCache::operator()(void* data) const noexcept {
  if (home) {
    home->give_back({data, capacity, shared});
  } else {
    free_aligned(data);
  }
}

// Rounds up. The step is an eighth of the largest power of two that is at most `bytes`: from 4 MiB to 8 MiB it is 512 KiB. So a
// block has at most an eighth more than is needed, and similar sizes can use the same block.
std::size_t OutputCache::capacity_for(std::size_t bytes) {
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

// A kept block may be larger than the wanted capacity. The Block of the result has the full capacity, so that all of it can be
// unmapped later.
OutputCache::Block OutputCache::get(std::size_t bytes, bool open) {
  if (bytes < kSmallest) return Block(new_aligned(bytes));
  const std::size_t capacity = capacity_for(bytes);
  FreeBlock memory{nullptr, capacity, open && shared_ && capacity <= most_shared_};
  if (memory.shared && take(memory)) {
    shared_->use(memory.data, true);
  } else if (memory.shared) {
    memory.data = shared_->get(capacity);
  }
  if (memory.data == nullptr) {
    memory.shared = false;
    if (!take(memory)) memory.data = map(capacity);
  }
  return {memory.data, {shared_from_this(), memory.capacity, memory.shared}};
}

bool OutputCache::take(FreeBlock& wanted) {
  const std::lock_guard lock(mutex_);
  auto best = kept_.end();
  for (auto candidate = kept_.begin(); candidate != kept_.end(); ++candidate) {
    if (candidate->shared != wanted.shared || candidate->capacity < wanted.capacity ||
        candidate->capacity > wanted.capacity + wanted.capacity / 4) {
      continue;
    }
    // If several blocks have the same size, takes the one that was returned last, because it is most likely in the caches.
    if (best == kept_.end() || candidate->capacity <= best->capacity) best = candidate;
  }
  if (best == kept_.end()) return false;
  wanted = *best;
  kept_bytes_ -= best->capacity;
  kept_.erase(best);
  return true;
}

// Each turn of the loop keeps the returned block, or frees one block without the lock. As long as the returned block does not
// fit beside the kept ones, a turn frees the oldest kept one. A turn frees the returned block itself if this block is larger
// than the limit, if the list cannot grow, or if no try gets the lock.
void OutputCache::give_back(FreeBlock memory) noexcept {
  for (;;) {
    FreeBlock unwanted = memory;
    std::unique_lock lock(mutex_, std::try_to_lock);
    for (int tries = kTriesForTheLock; !lock.owns_lock() && tries > 0; --tries) {
      base::spin_pause();
      lock.try_lock();
    }
    if (lock.owns_lock() && memory.capacity <= keep_bytes_) {
      if (kept_bytes_ + memory.capacity > keep_bytes_) {
        unwanted = kept_.front();  // the list is not empty, because the kept bytes are not zero
        kept_.erase(kept_.begin());
        kept_bytes_ -= unwanted.capacity;
      } else if (keep(memory)) {
        return;
      }
    }
    if (lock.owns_lock()) lock.unlock();
    unmap(unwanted);
    if (unwanted.data == memory.data) return;
  }
}

// A kept block of the ResultMemory is marked as not in use, so a forked child does not copy it (result_memory.h).
bool OutputCache::keep(const FreeBlock& memory) noexcept {
  try {
    kept_.push_back(memory);
  } catch (const std::bad_alloc&) {
    return false;
  }
  kept_bytes_ += memory.capacity;
  if (memory.shared) shared_->use(memory.data, false);
  return true;
}

// With a limit of 0, give_back() keeps nothing any more.
void OutputCache::close() {
  std::vector<FreeBlock> last;
  {
    const std::lock_guard lock(mutex_);
    last.swap(kept_);
    kept_bytes_ = keep_bytes_ = 0;
  }
  for (const FreeBlock& memory : last) unmap(memory);
}

}  // namespace hvdlite::engine
