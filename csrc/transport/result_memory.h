// Memory of every rank of one host for its results, which all of them map: a rank stores what it has reduced straight into the
// others' results (collectives/allreduce_shm.cc).
//
//   process of rank 0:   [ part 0: own          | part 1: mapped       | ... ]
//   process of rank 1:   [ part 0: mapped       | part 1: own          | ... ]    the same memory, all parts equally large
//
// An offset means the same to all. Nothing is taken from the system but for blocks that are handed out, and it goes back with
// them; the parts are address space. It lives as long as anybody keeps it: arrays over its blocks may outlive the engine.
//
// Fork: a child sees the parent's blocks, and what it writes to them the parent sees. It hands out none and gives none back.
//
// Thread: any; one lock, held for a short search. Owns: the mapping, and which of its own part is free. Blocks: in get, while
// the system makes pages. Throws: nothing once it is made, but at().
#pragma once

#include <sys/types.h>

#include <cstddef>
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

  // memory: a part of part_bytes, a multiple of kHugePage, for each rank of the host.
  ResultMemory(std::shared_ptr<SharedMemory> memory, std::size_t part_bytes, int local_rank);

  // Where this process sees so many bytes of a rank's part. Error(Internal) if they are not in it: the offset is what another
  // rank says.
  std::byte* at(int local_rank, std::size_t offset, std::size_t bytes) const;
  // Of bytes in the own part.
  std::optional<std::size_t> offset_of(const void* data, std::size_t bytes) const;

  // Room for so many bytes in the own part, with its pages; null where there is none.
  void* get(std::size_t bytes) noexcept;
  // What get() gave for so many bytes. Their pages go back to the system.
  void give_back(void* data, std::size_t bytes) noexcept;

 private:
  struct Range {
    std::size_t offset;
    std::size_t bytes;
  };
  // Cuts a range of this length from what is free.
  std::optional<Range> cut(std::size_t bytes);
  static std::size_t rounded(std::size_t bytes);

  const std::shared_ptr<SharedMemory> memory_;
  const std::size_t part_bytes_;
  std::byte* const own_;
  const pid_t owner_;
  std::mutex mutex_;
  std::size_t blocks_ = 0;   // handed out
  std::vector<Range> free_;  // by offset; neighbours are joined
};

}  // namespace hvdlite::transport
