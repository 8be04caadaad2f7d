// Memory for the results of every rank of one host, which all of them map. A rank stores what it has reduced straight into the
// other ranks' results (collectives/allreduce_shm.cc).
//
//   process of rank 0:   [ part 0: own          | part 1: mapped       | ... ]
//   process of rank 1:   [ part 0: mapped       | part 1: own          | ... ]    the same memory, all parts equally large
//
// An offset means the same place for all ranks. The parts are address space: a block takes pages from the system when it is
// handed out, and returns them when it is given back. The memory lives as long as an object refers to it, so arrays over its
// blocks may outlive the engine.
//
// Fork: the system does not copy shared mappings for a child. So a child first copies the blocks in use, each to the same
// address. fork() returns in the parent only after that, or after a minute. The child hands out no blocks and gives none back.
//
//   fork() ──► before: all locks; a pipe, if blocks are in use ──► parent: waits for the pipe's end, releases the locks
//                                                              └─► child: copies, closes the pipe, releases the locks
//
// Thread: any; one lock, held for a short search and through a fork. Owns: the mapping, and the list of blocks of its own
// part.
// Blocks: get and give_back, while the system makes or takes pages. Throws: nothing after construction, except at().
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/shared_memory.h"

namespace hvdlite::transport {

class ResultMemory {
 public:
  // Parts begin on such a boundary, and so do blocks of at least this size.
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  // The sizes of the smallest and of the largest result that lies in this memory. If the results of all ranks together have
  // more than Tuning::streaming_bytes, each rank writes its own result itself, past the caches.
  static constexpr std::size_t kSmallest = std::size_t{1} << 20;
  static constexpr std::size_t largest(std::size_t streaming_bytes, int ranks) {
    return streaming_bytes > 0 ? streaming_bytes / static_cast<std::size_t>(ranks)
                               : std::numeric_limits<std::size_t>::max();
  }

  // memory: a part of part_bytes, a multiple of kHugePage, for each rank of the host.
  ResultMemory(std::shared_ptr<SharedMemory> memory, std::size_t part_bytes, int local_rank);
  ~ResultMemory();
  ResultMemory(const ResultMemory&) = delete;
  ResultMemory& operator=(const ResultMemory&) = delete;

  // The address in this process of these bytes of a rank's part. Throws Error(Internal) if they lie outside of the part, since
  // the offset comes from another rank.
  std::byte* at(int local_rank, std::size_t offset, std::size_t bytes) const;
  // The offset of bytes in this rank's part; none if they do not lie there.
  std::optional<std::size_t> offset_of(const void* data, std::size_t bytes) const;

  // Returns a block of this size in this rank's part. The block has its pages already, and is marked as in use. Null if there
  // is no room, if the machine lacks the memory, or in a forked child.
  void* get(std::size_t bytes) noexcept;
  // Marks a block as in use or as kept for later.
  void use(const void* data, bool in_use) noexcept;
  // Returns the block's pages to the system.
  void give_back(void* data) noexcept;

 private:
  struct Block {
    std::size_t offset;
    std::size_t bytes;  // that were asked for
    bool in_use;
  };
  friend struct Forks;

  bool is_owner() const;
  // Adds a block in the first gap that is large enough. Returns its offset.
  std::optional<std::size_t> add_block(std::size_t bytes);
  std::vector<Block>::iterator find(const void* data);
  bool some_in_use() const;
  // Called in a forked child. Returns false if there is no memory for the copies.
  bool copy_what_is_in_use();

  const std::shared_ptr<SharedMemory> memory_;
  const std::size_t part_bytes_;
  std::byte* const own_;
  const pid_t owner_;
  std::mutex mutex_;
  std::vector<Block> blocks_;  // handed out, in order of offset
};

}  // namespace hvdlite::transport
