// Which algorithm serves an operation: a pure function of size, rank count and knobs, so that all ranks choose alike.
// Thread: any. Blocks: no. Throws: Error(InvalidArgument) for a forced name that does not exist.
#pragma once

#include <string>

#include "collectives/registry.h"

namespace hvdlite::collectives {

// "auto" lets the size decide; any other value forces that algorithm.
struct Selection {
  std::string allreduce = "auto";
  std::string reducescatter = "auto";
  std::string allgatherv = "auto";
  std::string broadcast = "auto";
  std::string alltoallv = "auto";
  std::string barrier = "auto";
  bool deterministic = false;                         // only layout-independent algorithms
  std::size_t recursive_doubling_max_bytes = 16 * 1024;  // allreduce: up to here latency counts, above bandwidth
  Tuning tuning;
};

std::unique_ptr<Collective> start_allreduce(Comm comm, AllreduceArgs args, const Selection& selection);
std::unique_ptr<Collective> start_reducescatter(Comm comm, ReducescatterArgs args, const Selection& selection);
std::unique_ptr<Collective> start_allgatherv(Comm comm, AllgathervArgs args, const Selection& selection);
std::unique_ptr<Collective> start_broadcast(Comm comm, BroadcastArgs args, const Selection& selection);
std::unique_ptr<Collective> start_alltoallv(Comm comm, AlltoallvArgs args, const Selection& selection);
std::unique_ptr<Collective> start_barrier(Comm comm, const Selection& selection);

// The name that start_allreduce would choose (timeline label, flight recorder, benchmark).
std::string_view chosen_allreduce(std::size_t bytes, int ranks, const Selection& selection);

// Fails early on a forced name that does not exist.
void check_selection(const Selection& selection);

}  // namespace hvdlite::collectives
