#include "transport/result_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace hvdlite::transport {
namespace {

constexpr std::size_t kGrain = std::size_t{1} << 20;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14

// Takes pages for all of it, as whoever writes there first would, but with an answer. False: the system has not so many.
bool populate(const SharedMemory& memory, std::byte* at, std::size_t bytes) {
  int error = EINTR;
  while (error == EINTR || error == EAGAIN) {
    error = madvise(at, bytes, kPopulateWrite) == 0 ? 0 : errno;
  }
  if (error == EINVAL) {  // an older kernel
    const auto offset = static_cast<off_t>(at - memory.data());
    error = posix_fallocate(memory.descriptor(), offset, static_cast<off_t>(bytes));
  }
  return error == 0;
}

}  // namespace

ResultMemory::ResultMemory(std::shared_ptr<SharedMemory> memory, std::size_t part_bytes,
                           int local_rank)
    : memory_(std::move(memory)),
      part_bytes_(part_bytes),
      own_(memory_->data() + static_cast<std::size_t>(local_rank) * part_bytes),
      owner_(getpid()),
      free_{{0, part_bytes}} {
  HVD_CHECK(part_bytes % kHugePage == 0 && own_ + part_bytes <= memory_->data() + memory_->size());
  madvise(memory_->data(), memory_->size(), MADV_HUGEPAGE);  // where there are none, small pages do
}

std::byte* ResultMemory::at(int local_rank, std::size_t offset, std::size_t bytes) const {
  HVD_CHECK(offset <= part_bytes_ && bytes <= part_bytes_ - offset);
  return memory_->data() + static_cast<std::size_t>(local_rank) * part_bytes_ + offset;
}

std::optional<std::size_t> ResultMemory::offset_of(const void* data, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto own = reinterpret_cast<std::uintptr_t>(own_);
  if (address < own || address - own > part_bytes_ || bytes > part_bytes_ - (address - own)) {
    return std::nullopt;
  }
  return address - own;
}

std::size_t ResultMemory::rounded(std::size_t bytes) {
  return (bytes + kGrain - 1) / kGrain * kGrain;
}

void* ResultMemory::get(std::size_t bytes) noexcept {
  if (bytes == 0 || bytes > part_bytes_ || getpid() != owner_) return nullptr;
  std::optional<Range> found;
  try {
    found = cut(rounded(bytes));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  if (!found) return nullptr;
  std::byte* const at = own_ + found->offset;
  if (populate(*memory_, at, bytes)) return at;
  give_back(at, bytes);
  return nullptr;
}

std::optional<ResultMemory::Range> ResultMemory::cut(std::size_t bytes) {
  const std::size_t alignment = bytes < kHugePage ? kGrain : kHugePage;
  const auto start_in = [&](const Range& room) {
    return (room.offset + alignment - 1) / alignment * alignment;
  };
  const std::lock_guard lock(mutex_);
  // What is free lies between blocks: so many ranges at most, and nothing can fail when blocks come back.
  free_.reserve(blocks_ + 2);
  const auto room = std::ranges::find_if(
      free_, [&](const Range& free) { return start_in(free) + bytes <= free.offset + free.bytes; });
  if (room == free_.end()) return std::nullopt;
  const Range block = {start_in(*room), bytes};
  const Range behind = {block.offset + bytes, room->offset + room->bytes - block.offset - bytes};
  room->bytes = block.offset - room->offset;
  const auto next = room->bytes == 0 ? free_.erase(room) : room + 1;
  if (behind.bytes > 0) free_.insert(next, behind);
  ++blocks_;
  return block;
}

void ResultMemory::give_back(void* data, std::size_t bytes) noexcept {
  if (getpid() != owner_) return;
  const std::size_t given = rounded(bytes);
  madvise(data, given, MADV_REMOVE);
  const Range range = {static_cast<std::size_t>(static_cast<std::byte*>(data) - own_), given};
  const std::lock_guard lock(mutex_);
  --blocks_;
  const auto behind =
      std::ranges::find_if(free_, [&](const Range& free) { return free.offset > range.offset; });
  const auto place = free_.insert(behind, range);
  const auto next = place + 1;
  if (next != free_.end() && place->offset + place->bytes == next->offset) {
    place->bytes += next->bytes;
    free_.erase(next);
  }
  if (place != free_.begin() && (place - 1)->offset + (place - 1)->bytes == place->offset) {
    (place - 1)->bytes += place->bytes;
    free_.erase(place);
  }
}

}  // namespace hvdlite::transport
