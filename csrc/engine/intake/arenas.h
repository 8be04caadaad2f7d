// The arenas that requests of this rank may name, and how an arena is made.
// Thread: any; one lock, held for a look-up. Owns: the open arenas; an operation in flight keeps a share of its own. Blocks:
// no. Throws: Error, as each function says.
//
// Members make an arena outside of the engine's order. Each creates its part (ArenaDraft). The callers exchange the parts'
// addresses, and each member opens all of them. Then the members agree whether all could open them: either all or none may name
// the arena.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/types.h"
#include "transport/arena.h"

namespace hvdlite::engine {

class ArenaDirectory {
 public:
  // Null if there is no such arena, or if it was removed.
  std::shared_ptr<const transport::Arena> find(std::int64_t id) const;
  // Throws Error(Aborted) after close().
  void add(std::shared_ptr<const transport::Arena> arena);
  void remove(std::int64_t id);
  // The engine ends: unmaps the other members' parts.
  void close();

 private:
  mutable std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<const transport::Arena>> arenas_;
  bool closed_ = false;
};

// A member's part of an arena that is being made.
class ArenaDraft {
 public:
  // The owner's description of its part, for the other members; plain bytes.
  struct Address {
    std::int64_t id = 0;  // the arena's id, if the owner is the set's first member
    std::uint64_t bytes = 0;
    transport::SharedMemory::Address memory;
  };

  // id: used once in the whole job. index: this rank's place among the `members` members of the set.
  ArenaDraft(std::shared_ptr<ArenaDirectory> directory, base::SetId set, int members, int index,
             std::int64_t id, transport::SharedMemory::Kind kind, std::size_t bytes);
  ~ArenaDraft() { close(); }
  ArenaDraft(const ArenaDraft&) = delete;
  ArenaDraft& operator=(const ArenaDraft&) = delete;

  const Address& address() const { return address_; }
  std::byte* data() const { return memory_->data(); }
  std::size_t bytes() const { return memory_->size(); }
  // 0 until it is open.
  std::int64_t id() const { return opened_; }

  // Maps all parts; after that, requests may name the arena. Throws Error(InvalidArgument) if the addresses do not fit
  // together, and Error(System) if a part cannot be mapped.
  void open(const std::vector<Address>& addresses);
  // Called when all members have tried to open the part: removes its name from the file system.
  void hide() { memory_->unlink(); }
  // Requests may no longer name the arena. This rank's part stays.
  void close();

 private:
  std::shared_ptr<ArenaDirectory> directory_;
  base::SetId set_;
  int members_;
  int index_;
  std::shared_ptr<transport::SharedMemory> memory_;
  Address address_;
  std::int64_t opened_ = 0;
};

}  // namespace hvdlite::engine
