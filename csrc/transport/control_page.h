// A page of memory that all ranks of one host share: doorbells, last words, and signs of life.
// Thread: ring and the read-only members by any thread; the rest by the holder of the progress token. Owns: the mapping and
// one file descriptor. Blocks: wait() only. Throws: nothing after creation.
//
// The memory is a memfd (no name, no /dev/shm limit), else a file in /dev/shm that is unlinked as soon as all have mapped it:
// a crash leaves nothing behind. Each rank holds a POSIX record lock on its own byte of the file; the kernel drops it when
// the process ends in whatever way, and forked children do not inherit it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/thread.h"

namespace hvdlite::transport {

// How the leader of a host tells the others where the memory is; plain bytes, sent through MPI.
struct PageAddress {
  bool exists = false;
  char path[256] = {};
};

class ControlPage {
 public:
  // The leader makes the file; everybody (the leader too) opens it. memfd false: use /dev/shm. Null if that is not to be had.
  static std::unique_ptr<ControlPage> create(int local_size, bool memfd, PageAddress* address);
  static std::unique_ptr<ControlPage> open(const PageAddress& address, int local_size,
                                           int local_rank);
  // The leader, once all have opened it.
  void unlink();
  ~ControlPage();
  ControlPage(const ControlPage&) = delete;
  ControlPage& operator=(const ControlPage&) = delete;

  std::uint32_t bell() const;
  void wait(std::uint32_t seen, base::microseconds limit);
  void ring(int local_rank);

  void announce_failure(const std::string& cause);
  void announce_leaving();
  // Why a rank is gone, or "" if it lives or left in good order.
  std::string why_lost(int local_rank) const;

  // Processors that any rank of this host may run on; valid once all ranks have opened the page.
  base::CpuSet union_of_cpus() const;

 private:
  struct Slot;
  ControlPage(int fd, void* memory, int local_size, int local_rank)
      : fd_(fd), memory_(memory), local_size_(local_size), local_rank_(local_rank) {}
  Slot& slot(int local_rank) const;

  int fd_;
  void* memory_;
  int local_size_;
  int local_rank_;
  std::string shm_path_;  // to unlink
};

}  // namespace hvdlite::transport
