// The arenas that requests of this rank may name, and how one is made.
// Thread: any; one lock, held for a look-up. Owns: the open arenas; an operation in flight keeps its own. Blocks: no.
// Throws: Error as each function says.
//
// Made outside of the engine's order: each member creates its part (ArenaDraft), they exchange the parts' addresses as they like,
// each opens all of them, and they agree that all could: all or none may name the arena.
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
  // Null if there is none (any more).
  std::shared_ptr<const transport::Arena> find(std::int64_t id) const;
  // Error(Aborted) once the directory is closed.
  void add(std::shared_ptr<const transport::Arena> arena);
  void remove(std::int64_t id);
  // The engine ends: the others' parts are let go.
  void close();

 private:
  mutable std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<const transport::Arena>> arenas_;
  bool closed_ = false;
};

// A member's part of an arena in the making.
class ArenaDraft {
 public:
  // How a part's owner describes it to the other members; plain bytes.
  struct Address {
    std::int64_t id = 0;  // what the arena is called if the owner is its set's first member
    std::uint64_t bytes = 0;
    transport::SharedMemory::Address memory;
  };

  // id: used once in the whole job. index: of this rank among the `members` members of the set.
  ArenaDraft(std::shared_ptr<ArenaDirectory> directory, base::SetId set, int members, int index,
             std::int64_t id, transport::SharedMemory::Kind kind, std::size_t bytes);
  ~ArenaDraft() { close(); }
  ArenaDraft(const ArenaDraft&) = delete;
  ArenaDraft& operator=(const ArenaDraft&) = delete;

  const Address& address() const { return address_; }
  std::byte* data() const { return memory_->data(); }
  std::size_t bytes() const { return memory_->size(); }
  // 0 while it is not open.
  std::int64_t id() const { return opened_; }

  // Maps all parts; from now on requests may name the arena. Error(InvalidArgument) if the addresses do not fit together,
  // Error(System) if a part cannot be mapped.
  void open(const std::vector<Address>& addresses);
  // All members have tried to open it: nobody needs to find it any more.
  void hide() { memory_->unlink(); }
  // Requests may name it no more; this rank's part stays.
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
