// How an arena comes to be, with two members (engine/intake/arenas.cc makes the calls):
//
//    member 0                                          member 1
//    ArenaPart::create(): part 0, its address          ArenaPart::create(): part 1, its address
//                   the members exchange addresses (hvdlite/arenas.py)
//    SharedMemory::open(): part 1                      SharedMemory::open(): part 0
//    Arena(parts 0 and 1, index 0)                     Arena(parts 0 and 1, index 1)
//                   the members tell each other whether that has succeeded
//    unlink(): part 0 has no name any more             unlink(): part 1 has no name any more
//
// So parts_ has the same order on all members. But each member has mapped the parts at other addresses (bases_), so the members
// name a tensor by its offset in its owner's part. An example: on member 0 part 0 begins at 0x7f10'0000'0000 and a
// gradient lies at 0x7f10'0010'0000. Its offset is 0x10'0000, and member 1 finds it at bases()[0] + 0x10'0000.
//
// What keeps a part mapped. A member's own part: its ArenaDraft (engine/intake/arenas.h), as long as tensors may lie in the
// part, and the Arena. The other members' parts: the Arena alone. When an arena is closed, the engine's directory drops the
// Arena, but each operation in flight holds it (Entry::arena). So no operation loses its memory.
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

// The last comparison subtracts and does not add `bytes` to an address, because the sum may overflow if `bytes` is large.
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
