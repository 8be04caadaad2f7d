// Memory that all members of a process set map, with one part for each member. A collective reduces tensors in it in place,
// without a copy (collectives/allreduce_push.cc). All parts have the same size, and an offset means the same place in each.
// Thread: one thread makes it; then any may read it. Owns: the mappings of all parts. Blocks: no. Throws: ArenaPart::create()
// throws Error(System) if the machine lacks the memory.
//
//              process of member 0           process of member 1
//   part 0     own, reserved; its tensors    mapped, while the Arena lives
//   part 1     mapped, while the Arena lives own, reserved; its tensors
//
// A part lives as long as any process maps it. Its owner keeps it as long as tensors lie in it, even without the Arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/types.h"
#include "transport/shared_memory.h"

namespace hvdlite::transport {

// One member's own part, and the address by which the other members find it.
struct ArenaPart {
  // Takes the pages from the system at once. kind: see SharedMemory.
  static ArenaPart create(SharedMemory::Kind kind, std::size_t bytes);

  std::shared_ptr<SharedMemory> memory;
  SharedMemory::Address address;
};

class Arena {
 public:
  // parts[i] belongs to member i of the set. index: this rank's place among the members; the part at that place is its own.
  Arena(std::int64_t id, base::SetId set, std::vector<std::shared_ptr<SharedMemory>> parts,
        int index);

  // The same number on all members; greater than 0, and never used again by this engine.
  std::int64_t id() const { return id_; }
  base::SetId set() const { return set_; }
  // Do these bytes lie in this rank's part?
  bool holds(const void* data, std::size_t bytes) const;
  // The offset of an address that this rank's part holds.
  std::int64_t offset_of(const void* data) const;
  // The addresses of the parts in this process, by member.
  const std::vector<std::byte*>& bases() const { return bases_; }

 private:
  std::int64_t id_;
  base::SetId set_;
  std::vector<std::shared_ptr<SharedMemory>> parts_;
  std::vector<std::byte*> bases_;
  std::size_t index_;
};

}  // namespace hvdlite::transport
