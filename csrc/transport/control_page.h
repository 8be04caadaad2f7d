// A page of memory that all ranks of one host share: doorbells, last words, and signs of life.
// Thread: bell and the read-only members by any thread; the rest by the holder of the progress token. Owns: the memory.
// Blocks: no. Throws: Error(System) when made, if the system refuses; nothing later.
//
// Each rank holds a POSIX record lock on its own byte of the memory's file; the kernel drops it when the process ends in
// whatever way, and forked children do not inherit it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/thread.h"
#include "transport/bell.h"
#include "transport/shared_memory.h"

namespace hvdlite::transport {

class ControlPage {
 public:
  // memory: bytes_for(local_size) of it, opened by all ranks of the host, once each: a process loses its record locks when it
  // closes any descriptor of the file.
  ControlPage(std::unique_ptr<SharedMemory> memory, int local_size, int local_rank);
  static std::size_t bytes_for(int local_size);
  ControlPage(const ControlPage&) = delete;
  ControlPage& operator=(const ControlPage&) = delete;

  Bell& bell(int local_rank) const;

  void announce_failure(const std::string& cause);
  void announce_leaving();
  // Why a rank is gone, or "" if it lives or left in good order.
  std::string why_lost(int local_rank) const;

  // Processors that any rank of this host may run on; valid once all ranks have made theirs.
  base::CpuSet union_of_cpus() const;

 private:
  struct RankPage;
  RankPage& slot(int local_rank) const;

  std::unique_ptr<SharedMemory> memory_;
  int local_size_;
  int local_rank_;
};

}  // namespace hvdlite::transport
