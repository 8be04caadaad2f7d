// Joins the ranks of an MPI communicator: loads the shim, learns the topology, sets up the control page and the window of each host.
// Thread: one, at init; collective over the communicator. Owns: nothing afterwards. Blocks: until all ranks have joined.
// Throws: Error(System) if MPI or the shim refuses, Error(Unsupported) for too low a thread level, naming the remedy.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/config.h"
#include "base/thread.h"
#include "transport/transport.h"

namespace hvdlite::transport {

struct MpiWorld {
  std::unique_ptr<Transport> transport;
  int rank = 0, size = 1, local_rank = 0, local_size = 1, cross_rank = 0, cross_size = 1;
  bool is_homogeneous = true;
  base::microseconds spin{0};  // how long a waiting caller may poll without sleeping
};

// ledger_bytes: of each region of the window.
MpiWorld open_mpi(const char* shim_path, const void* comm_address, const base::Config& config,
                  std::size_t ledger_bytes);

// Where a rank stands, from the lowest rank of each rank's host (leaders[r]). Pure.
MpiWorld place(const std::vector<int>& leaders, int rank);

}  // namespace hvdlite::transport
