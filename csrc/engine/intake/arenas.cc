// An example: ranks 0 and 1 make an arena of 4096 bytes for each rank. The callers carry the addresses from rank to rank:
//
//               rank 0                                 rank 1
//    create     part 0, address {id 7, 4096, ...}      part 1, address {id 2^32 + 3, 4096, ...}
//    exchange   both callers have both addresses       the same
//    open       uses its own part 0, maps part 1       maps part 0, uses its own part 1
//               adds arena 7 to its directory          adds arena 7 to its directory
//
// Rank r gives its parts the ids r * 2^32 + 1, r * 2^32 + 2, ... (Engine::create_arena), so parts of two ranks never have
// equal ids. All members take the id in the first member's address as the arena's id: 7 in the example. The id 2^32 + 3 stays
// unused.
//
// If ArenaDraft::open() throws, it has changed neither the draft nor the directory, and has unmapped the parts that it had
// mapped.
#include "engine/intake/arenas.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace hvdlite::engine {

using base::Error;
using base::ErrorCode;

std::shared_ptr<const transport::Arena> ArenaDirectory::find(std::int64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = arenas_.find(id);
  return found != arenas_.end() ? found->second : nullptr;
}

void ArenaDirectory::add(std::shared_ptr<const transport::Arena> arena) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw Error(ErrorCode::kAborted, "this rank has shut down: no arena can be opened");
  const std::int64_t id = arena->id();
  // The id may come from another rank. If this rank already has an arena with this id, add() throws: otherwise requests would
  // find the older arena.
  HVD_CHECK(arenas_.emplace(id, std::move(arena)).second);
}

void ArenaDirectory::remove(std::int64_t id) {
  // `removed` is destroyed after the lock is released, because it may be the last owner of the arena, and unmapping may take
  // long.
  std::shared_ptr<const transport::Arena> removed;
  const std::lock_guard lock(mutex_);
  const auto found = arenas_.find(id);
  if (found == arenas_.end()) return;
  removed = std::move(found->second);
  arenas_.erase(found);
}

void ArenaDirectory::close() {
  decltype(arenas_) removed;  // destroyed after the lock is released, as in remove()
  const std::lock_guard lock(mutex_);
  closed_ = true;
  removed.swap(arenas_);
}

ArenaDraft::ArenaDraft(std::shared_ptr<ArenaDirectory> directory, base::SetId set, int members,
                       int index, std::int64_t id, transport::SharedMemory::Kind kind,
                       std::size_t bytes)
    : directory_(std::move(directory)), set_(set), members_(members), index_(index) {
  transport::ArenaPart part = transport::ArenaPart::create(kind, bytes);
  memory_ = std::move(part.memory);
  address_ = {id, bytes, part.address};
}

void ArenaDraft::open(const std::vector<Address>& addresses) {
  if (opened_ != 0) throw Error(ErrorCode::kInvalidArgument, "this arena is open already");
  if (addresses.size() != static_cast<std::size_t>(members_)) {
    throw Error(ErrorCode::kInvalidArgument,
                "an arena needs one address for each of the " + std::to_string(members_) +
                    " members of its process set, not " + std::to_string(addresses.size()));
  }
  std::vector<std::shared_ptr<transport::SharedMemory>> parts;
  for (int member = 0; member < members_; ++member) {
    const Address& theirs = addresses[static_cast<std::size_t>(member)];
    if (theirs.bytes != address_.bytes) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the parts of an arena differ in size: " + std::to_string(theirs.bytes) +
                      " bytes of member " + std::to_string(member) + ", " +
                      std::to_string(address_.bytes) +
                      " here; give one size on all ranks of the process set");
    }
    parts.push_back(member == index_ ? memory_
                                     : transport::SharedMemory::open(theirs.memory, theirs.bytes));
  }
  const std::int64_t id = addresses.front().id;
  directory_->add(std::make_shared<const transport::Arena>(id, set_, std::move(parts), index_));
  opened_ = id;
}

void ArenaDraft::close() {
  if (opened_ != 0) directory_->remove(opened_);
  opened_ = 0;
}

}  // namespace hvdlite::engine
