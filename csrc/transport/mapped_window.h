// The host window of ranks that are processes: a HostWindow in memory that all of them map.
// Thread: one thread makes it; then as HostWindow says. Owns: the memory. Blocks: no. Throws: Error(System) if the machine
// lacks the memory.
#pragma once

#include <memory>

#include "transport/host_window.h"
#include "transport/shared_memory.h"

namespace hvdlite::transport {

class MappedWindow {
 public:
  // memory: shape.bytes() bytes, not used yet. The constructor reserves and touches this rank's part (and the ledgers, if it is
  // the host's first rank). So later use cannot run out of memory, and the pages lie on this rank's NUMA node.
  MappedWindow(std::unique_ptr<SharedMemory> memory, const HostWindow::Layout& shape,
               int local_rank);

  HostWindow& window() { return window_; }

 private:
  std::unique_ptr<SharedMemory> memory_;
  HostWindow window_;
};

}  // namespace hvdlite::transport
