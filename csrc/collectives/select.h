// Chooses the algorithm for an operation, from its size, the ranks and their hosts, and the knobs. All ranks choose the same
// algorithm, because these facts are equal on all ranks.
// Thread: any for the choices; start_... as algorithms.h says. Owns: nothing. Blocks: no. Throws: Error(InvalidArgument) for a
// forced name that does not exist, Error(Unsupported) for one that cannot run on this Comm, and what the algorithm throws.
#pragma once

#include <string>

#include "collectives/registry.h"

namespace hvdlite::collectives {

// "auto": start_... chooses. Any other value is the name of the algorithm that start_... must take. Adasum, and reductions that
// a codec codes, ignore the value.
struct Selection {
  std::string allreduce = "auto";
  std::string reducescatter = "auto";
  std::string allgatherv = "auto";
  std::string broadcast = "auto";
  std::string alltoallv = "auto";
  std::string barrier = "auto";
  // True: the bits of a sum depend only on the values, on the number of ranks, and on which ranks share a host. So only
  // layout-independent algorithms (registry.h) are chosen. Fusion changes sizes, so from 3 ranks on all sizes have the same
  // order of additions (the orders of direct and recursive_doubling differ).
  bool deterministic = false;
  // Up to this size latency counts, and above it bandwidth. The size is that of a member's input (allreduce, reducescatter,
  // alltoall, broadcast), or that of the longest part times the number of members (allgather).
  std::size_t recursive_doubling_max_bytes = 512 * 1024;
  Tuning tuning;
};

std::unique_ptr<Collective> start_allreduce(Comm comm, AllreduceArgs args,
                                            const Selection& selection);
std::unique_ptr<Collective> start_reducescatter(Comm comm, ReducescatterArgs args,
                                                const Selection& selection);
std::unique_ptr<Collective> start_allgatherv(Comm comm, AllgathervArgs args,
                                             const Selection& selection);
std::unique_ptr<Collective> start_broadcast(Comm comm, BroadcastArgs args,
                                            const Selection& selection);
std::unique_ptr<Collective> start_alltoallv(Comm comm, AlltoallvArgs args,
                                            const Selection& selection);
std::unique_ptr<Collective> start_barrier(Comm comm, const Selection& selection);

// The facts for a choice: equal on all ranks of a Comm.
struct CommShape {
  int ranks = 1;
  bool shared = false;  // all of them share memory
  // The number of hosts, if there are several and the ranks of each share memory; otherwise 0.
  int hosts = 0;
  std::size_t inline_bytes = 0;    // up to here an allreduce in the memory that all share is inline
  std::size_t prepared_bytes = 0;  // preparation_of: the largest input prepared in that memory
};

// How members prepare an operation (prepared.h).
enum class Preparation : std::uint8_t {
  kNone,   // not at all
  kWhole,  // each member gets the whole input of the others (of a broadcast: of the root)
  kParts,  // each member gets its part of the others' inputs
};
// bytes: of a member's input. reduction: read only if operations of this kind reduce. If shape.shared, the members agree in the
// memory that they share, and the inputs lie there; otherwise the inputs travel in messages.
Preparation preparation_of(base::OpKind kind, std::size_t bytes, const Reduction& reduction,
                           const CommShape& shape, const Selection& selection);

// Would start_allreduce take a buffer of many parts as it is? If not, the caller has to pack it into one part.
bool takes_scattered(std::size_t bytes, const Reduction& reduction, const Comm& comm,
                     const Selection& selection);

// Throws Error(InvalidArgument) for a forced name that does not exist, that cannot be forced, or that contradicts
// deterministic.
void check_selection(const Selection& selection);

}  // namespace hvdlite::collectives
