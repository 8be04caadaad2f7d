// Ring reduce-scatter: the first half of the ring allreduce. Chunks may have different sizes, including zero.
//
// What moves where, four ranks with chunks a b c d for ranks 0 1 2 3: hop 0, 1 and 2 of
// allreduce_ring.cc's table. Afterwards rank 0 writes a = a1 + a2 + a3 + a0 to its output, rank 1
// b = b2 + b3 + b0 + b1, and so on. Each chunk is cut into segments; round k carries the k-th
// segment of every chunk (a chunk that has fewer sends nothing), up to four rounds at once.
//
// Cost for p ranks and S bytes in all, even chunks, one round: (p-1) alpha + (p-1)/p S beta +
// (p-1)/p S gamma. Bytes sent by each rank: (p-1)/p S; for 16-bit floats (2p-3)/p S, because partials travel as float32. A
// single large chunk streams around the ring in segments: about (p-2 + K) segment times for K segments.
//
// It cannot deadlock, for the reasons that allreduce_ring.cc gives. Only the owner of an element has its result. Not
// layout-independent: the order of additions begins with the rank after the owner.
//
// Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations
// (JPDC 69, 2009), its reduce-scatter half.
#include "collectives/algorithms.h"
#include "collectives/ring_reduction.h"

namespace hvdlite::collectives {

std::unique_ptr<Collective> reducescatter_ring(Comm comm, ReducescatterArgs args,
                                               const Tuning& tuning) {
  return reduce_in_lanes<RingLane>(comm, args, tuning);
}

}  // namespace hvdlite::collectives
