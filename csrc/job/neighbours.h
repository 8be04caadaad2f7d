// The other processes of this host, as the kernel sees them.
// Thread: one at a time. Owns: a descriptor for each process. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <memory>
#include <vector>

namespace hvdlite::job {

class Neighbours {
 public:
  virtual ~Neighbours() = default;
  // Always false for a rank of another host, and for a rank whose process the kernel does not let this process watch: only MPI
  // can report the end of such ranks.
  virtual bool has_ended(int rank) = 0;
  virtual bool is_stopped(int rank) = 0;
  // Sends SIGKILL, which also ends a stopped process.
  virtual void kill(int rank) = 0;
};

// pids: the process ids by rank; 0 for this process and for processes of other hosts. The descriptors are pidfds (Linux 5.3): a
// pidfd names one process, and never a later process with the same number.
std::unique_ptr<Neighbours> watch_processes(const std::vector<int>& pids);

}  // namespace hvdlite::job
