// Memory that all ranks of one host share: doorbells, the causes of failures, and proof that a rank lives.
// Thread: any for the bells and for functions that only read; for the others the holder of the progress token. Owns: the
// memory. Blocks: no. Throws: the constructor throws Error(System) if the system refuses; the other functions throw nothing.
//
// Each rank holds a POSIX record lock on its own byte of the memory's file. The kernel drops the lock when the process ends in
// any way. Forked children do not inherit the lock.
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
  // memory: bytes_for(local_size) bytes. Each rank of the host opens it exactly once: a process loses its record locks when it
  // closes any descriptor of the file.
  ControlPage(std::unique_ptr<SharedMemory> memory, int local_size, int local_rank);
  static std::size_t bytes_for(int local_size);
  ControlPage(const ControlPage&) = delete;
  ControlPage& operator=(const ControlPage&) = delete;

  Bell& bell(int local_rank) const;

  // Keeps at most 3071 bytes of the cause, and rings all bells.
  void announce_failure(const std::string& cause);
  void announce_leaving();
  // Why another rank is lost; "" if it lives or has left without a failure. A rank must not ask for itself: the kernel does not
  // show a process its own lock.
  std::string why_lost(int local_rank) const;

  // The processors on which at least one rank of this host may run. Valid after all ranks of the host have made their
  // ControlPage.
  base::CpuSet union_of_cpus() const;

 private:
  struct RankPage;
  RankPage& slot(int local_rank) const;

  std::unique_ptr<SharedMemory> memory_;
  int local_size_;
  int local_rank_;
};

}  // namespace hvdlite::transport
