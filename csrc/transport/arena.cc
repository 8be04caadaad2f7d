#include "transport/arena.h"

#include <sys/mman.h>

#include <utility>

#include "base/error.h"

namespace hvdlite::transport {

ArenaPart ArenaPart::create(SharedMemory::Kind kind, std::size_t bytes) {
  ArenaPart part;
  part.memory = SharedMemory::create(kind, "hvdlite-arena", bytes, &part.address);
  // Asks for large pages, which the system may refuse for shared memory. This is only a hint, so a failure is ignored.
  madvise(part.memory->data(), bytes, MADV_HUGEPAGE);
  part.memory->reserve(0, bytes);
  return part;
}

Arena::Arena(std::int64_t id, base::SetId set, std::vector<std::shared_ptr<SharedMemory>> parts,
             int index)
    : id_(id), set_(set), parts_(std::move(parts)), index_(static_cast<std::size_t>(index)) {
  HVD_CHECK(id_ > 0 && index_ < parts_.size());
  for (const auto& part : parts_) {
    HVD_CHECK(part->size() == parts_[index_]->size());
    bases_.push_back(part->data());
  }
}

// The last comparison subtracts instead of adding `bytes` to an address: a sum of a large size and an address may overflow.
bool Arena::holds(const void* data, std::size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(data);
  const std::byte* base = bases_[index_];
  const std::size_t size = parts_[index_]->size();
  return first >= base && first <= base + size &&
         bytes <= size - static_cast<std::size_t>(first - base);
}

std::int64_t Arena::offset_of(const void* data) const {
  return static_cast<const std::byte*>(data) - bases_[index_];
}

}  // namespace hvdlite::transport
