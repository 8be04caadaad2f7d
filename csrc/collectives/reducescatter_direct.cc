// Direct reduce-scatter: every rank sends each chunk of its input to the chunk's owner, which adds the contributions in rank
// order. Chunks may have different sizes, including zero.
//
// What moves where, four ranks with chunks a b c d: the first four lines of allreduce_direct.cc's
// table; afterwards rank 0 has a0+a1+a2+a3 in its output, and so on. Each chunk is cut into
// segments; round k carries the k-th segment of every chunk (a chunk that has fewer sends nothing),
// up to four rounds at once.
//
// Cost for p ranks and S bytes in all, even chunks, one round: alpha + (p-1) o + (p-1)/p S beta +
// (p-1)/p S gamma (o: the sender's own time for a message). Bytes sent by each rank: S less its own
// chunk, in the user's type. One large chunk makes its owner's link the bottleneck: the owner receives p-1 times the chunk's
// bytes. In a ring it would receive the chunk once.
//
// It cannot deadlock: see allreduce_direct.cc; there is no gather phase to wait for. An element has
// one owner and only the owner has a result. Layout-independent: contributions are added in rank
// order wherever an element lies.
//
// Source: the pairwise-exchange reduce-scatter in Thakur, Rabenseifner and Gropp, Optimization of
// collective communication operations in MPICH (IJHPCA 19, 2005), with a fixed order of additions.
#include "collectives/algorithms.h"
#include "collectives/direct_reduction.h"

namespace hvdlite::collectives {

std::unique_ptr<Collective> reducescatter_direct(Comm comm, ReducescatterArgs args,
                                                 const Tuning& tuning) {
  return reduce_in_lanes<DirectLane>(comm, args, tuning);
}

}  // namespace hvdlite::collectives
