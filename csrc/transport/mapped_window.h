// The host window of ranks that are processes: a HostWindow in memory they all map.
// Thread: made by one; then as HostWindow says. Owns: the memory. Blocks: no. Throws: Error(System) if the machine has not
// got so much memory.
#pragma once

#include <memory>

#include "transport/host_window.h"
#include "transport/shared_memory.h"

namespace hvdlite::transport {

class MappedWindow {
 public:
  // memory: shape.bytes() of it, not used yet. Reserves and touches what is this rank's (and, as the host's first rank, the
  // ledgers), so that no use of the window runs out of memory or finds its pages on another rank's NUMA node.
  MappedWindow(std::unique_ptr<SharedMemory> memory, const HostWindow::Layout& shape,
               int local_rank);

  HostWindow& window() { return window_; }

 private:
  std::unique_ptr<SharedMemory> memory_;
  HostWindow window_;
};

}  // namespace hvdlite::transport
