// Joins the ranks of an MPI communicator: loads the shim, learns the topology, sets up the control page and the window of each host.
// Thread: one, at init; collective over the communicator. Owns: nothing afterwards. Blocks: until all ranks have joined.
// Throws: Error(System) if MPI or the shim refuses, Error(Unsupported) for too low a thread level, naming the remedy.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/thread.h"
#include "transport/transport.h"

namespace hvdlite::transport {

struct MpiWorld {
  std::unique_ptr<Transport> transport;
  int rank = 0, size = 1, local_rank = 0, local_size = 1, cross_rank = 0, cross_size = 1;
  bool is_homogeneous = true;
  base::WaitPolicy waiting;
};

// ledger_bytes: of each region of the window.
MpiWorld open_mpi(const char* shim_path, const void* comm_address, const base::Config& config,
                  std::size_t ledger_bytes);

// How so many ranks that may run on so many processors together wait for each other. Polling pays for about as long as it takes
// to fall asleep and be woken; where ranks share a processor it would take it from the very rank that is waited for, so each
// lets others have it instead. Pure.
base::WaitPolicy choose_waiting(const base::Config& config, int cpus, int ranks);

// The lowest rank of each rank's host. leaders: the same as MPI sees it. machines: names of the machines, "" where there is none. On
// one host are ranks of which MPI says so, and those on one machine: MPI may not know, and takes each rank for alone under a
// launcher that does not tell it what it asks for. Pure.
std::vector<int> merge_hosts(std::vector<int> leaders, const std::vector<std::string>& machines);

// Where a rank stands, from the lowest rank of each rank's host (leaders[r]). Pure.
MpiWorld place(const std::vector<int>& leaders, int rank);

}  // namespace hvdlite::transport
