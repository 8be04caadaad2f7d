// The arenas that requests of this rank may name, and how an arena is made.
// Thread: any for ArenaDirectory (one lock, held while the map of arenas is read or changed); one at a time for an ArenaDraft.
// Owns: the open arenas, which operations in flight share; a draft owns this rank's part. Blocks: no. Throws: Error, as each
// function says, and std::bad_alloc.
//
// The engine has no operation that makes an arena: the callers make it together (hvdlite/arenas.py). Each member creates its
// part (ArenaDraft). The members exchange the parts' addresses, and each member opens all parts. Then each member tells the
// others whether it has opened all parts. If a member could not open all parts, all members close the arena, and no request
// names the arena.
#pragma once

#include <cstddef>
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
  // Null if the directory has no arena with this id.
  std::shared_ptr<const transport::Arena> find(std::int64_t id) const;
  // Throws Error(Aborted) after close().
  void add(std::shared_ptr<const transport::Arena> arena);
  void remove(std::int64_t id);
  // Called when the engine ends. Removes all arenas.
  void close();

 private:
  mutable std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<const transport::Arena>> arenas_;
  bool closed_ = false;
};

// A member's part of an arena that is being made.
class ArenaDraft {
 public:
  // How a member (the owner) describes its part to the other members. Trivially copyable, because callers send its bytes.
  struct Address {
    std::int64_t id = 0;  // the arena's id, if the owner is the set's first member
    std::uint64_t bytes = 0;
    transport::SharedMemory::Address memory;
  };

  // Creates this rank's part. id: give an id that no draft of another rank, and no earlier draft of this rank's engine, has.
  // index: this rank's place among the `members` members of the set.
  // Throws Error(System) if the system does not give the memory.
  ArenaDraft(std::shared_ptr<ArenaDirectory> directory, base::SetId set, int members, int index,
             std::int64_t id, transport::SharedMemory::Kind kind, std::size_t bytes);
  ~ArenaDraft() { close(); }
  ArenaDraft(const ArenaDraft&) = delete;
  ArenaDraft& operator=(const ArenaDraft&) = delete;

  const Address& address() const { return address_; }
  std::byte* data() const { return memory_->data(); }
  std::size_t bytes() const { return memory_->size(); }
  // 0 unless the arena is open.
  std::int64_t id() const { return opened_; }

  // Maps all parts; after that, requests may name the arena. Throws Error(InvalidArgument) if there is not one address for
  // each member, if the parts differ in size, or if the arena is open already. Throws Error(System) if a part cannot be
  // mapped, Error(Internal) for an address that hvdlite never makes, and Error(Aborted) after the engine has ended.
  void open(const std::vector<Address>& addresses);
  // Call it when all members have tried to open this rank's part. Removes the part's name from the file system.
  void hide() { memory_->unlink(); }
  // After that, no request may name the arena. The other members' parts are unmapped when no operation uses them any more.
  // This rank's part stays at least until the draft is destroyed.
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
