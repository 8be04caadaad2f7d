// Memory of every rank of one host for its results, which all of them map: a rank stores what it has reduced straight into the
// others' results (collectives/allreduce_shm.cc).
//
//   process of rank 0:   [ part 0: own          | part 1: mapped       | ... ]
//   process of rank 1:   [ part 0: mapped       | part 1: own          | ... ]    the same memory, all parts equally large
//
// An offset means the same to all. Nothing is taken from the system but for blocks that are handed out, and it goes back with
// them; the parts are address space. It lives as long as anybody keeps it: arrays over its blocks may outlive the engine.
//
// Fork: memory that is mapped like this is not copied for a child, as other memory is. So a child begins by copying the blocks
// that are in use, each in its place, and its parent's fork() returns when that is done. It hands out none and gives none back.
//
//   fork() ──► before: all locks; a pipe, if blocks are in use ──► parent: waits for the pipe's end, lets the locks go
//                                                              └─► child: copies, closes the pipe, lets the locks go
//
// Thread: any; one lock, held for a short search and through a fork. Owns: the mapping, and which of its own part is free.
// Blocks: get and give_back, while the system makes or takes pages. Throws: nothing once it is made, but at().
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
  // Parts begin on one, and blocks that are not smaller.
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  // Of what lies here. Larger results are written past the caches (Tuning::streaming_bytes), each by its own rank.
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

  // Where this process sees so many bytes of a rank's part. Error(Internal) if they are not in it: the offset is what another
  // rank says.
  std::byte* at(int local_rank, std::size_t offset, std::size_t bytes) const;
  // Of bytes in the own part.
  std::optional<std::size_t> offset_of(const void* data, std::size_t bytes) const;

  // Room for so many bytes in the own part, with its pages; null where there is none. It is in use.
  void* get(std::size_t bytes) noexcept;
  // A block is kept for later, or in use again.
  void use(const void* data, bool in_use) noexcept;
  // Its pages go back to the system.
  void give_back(void* data) noexcept;

 private:
  struct ByteRange {
    std::size_t offset;
    std::size_t bytes;
  };
  struct Block {
    ByteRange range;
    std::size_t bytes;  // that were asked for
    bool in_use;
  };
  friend struct Forks;

  bool is_owner() const;
  // Cuts a block from what is free; where it begins.
  std::optional<std::size_t> cut(std::size_t bytes);
  void join(const ByteRange& range) noexcept;
  std::vector<Block>::iterator find(const void* data);
  bool some_in_use() const;
  // In a child that was forked: false if there is no memory for it.
  bool copy_what_is_in_use();

  const std::shared_ptr<SharedMemory> memory_;
  const std::size_t part_bytes_;
  std::byte* const own_;
  const pid_t owner_;
  std::mutex mutex_;
  std::vector<Block> blocks_;    // handed out
  std::vector<ByteRange> free_;  // by offset; neighbours are joined
};

}  // namespace hvdlite::transport
