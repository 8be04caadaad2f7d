// Joins the ranks of an MPI communicator: loads the shim, learns the topology, and sets up each host's control page and window.
// Thread: one, in init(); collective over the communicator. Owns: nothing afterwards. Blocks: until all ranks have joined.
// Throws: what load_mpi() throws (mpi_library.h), and Error(System, PeerLost) if MPI refuses.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/thread.h"
#include "base/types.h"
#include "transport/transport.h"

namespace hvdlite::transport {

struct MpiWorld {
  std::unique_ptr<Transport> transport;
  base::Topology topology;
  base::WaitPolicy waiting;
};

// takes_comm: the transport uses the communicator itself instead of a duplicate. ledger_bytes: the ledger's size in each region
// of the window.
MpiWorld open_mpi(const char* shim_path, const void* comm_address, bool takes_comm,
                  const base::Config& config, std::size_t ledger_bytes);

// How the ranks of a host wait for each other. There are `ranks` of them, and together they may run on `cpus` processors.
// Polling pays off for about the time that it takes to fall asleep and be woken. If ranks share a processor, a polling rank
// would take it from the very rank that it waits for, so each rank yields instead. Pure.
base::WaitPolicy choose_waiting(const base::Config& config, int cpus, int ranks);

// Returns for each rank the lowest rank of its host. leaders: the same list as MPI reports it. machines: the name of each
// rank's machine, "" if unknown. Two ranks are on one host if MPI says so, or if they have the same machine. If the launcher
// does not tell MPI the topology, MPI reports each rank as alone on its host. Pure.
std::vector<int> merge_hosts(std::vector<int> leaders, const std::vector<std::string>& machines);

// A rank's place, computed from the lowest rank of each rank's host (leaders[r]). Pure.
base::Topology place(const std::vector<int>& leaders, int rank);

}  // namespace hvdlite::transport
