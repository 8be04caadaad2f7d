// The other processes of this host, as the kernel sees them.
// Thread: one at a time. Owns: a descriptor for each process. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <memory>
#include <vector>

namespace hvdlite::job {

class Neighbours {
 public:
  virtual ~Neighbours() = default;
  // False for a rank of another host, and for one of which the kernel gives no descriptor; then only MPI can tell.
  virtual bool has_ended(int rank) = 0;
  virtual bool is_stopped(int rank) = 0;
  // Sends SIGKILL, which also ends a stopped process.
  virtual void kill(int rank) = 0;
};

// pids: by rank; 0 for this process and those of other hosts. The descriptors are pidfds (Linux 5.3): they name a process, and
// never a later process with the same number.
std::unique_ptr<Neighbours> watch_processes(const std::vector<int>& pids);

}  // namespace hvdlite::job
