// Direct allreduce: each part of the buffer has an owner. Every rank sends the owner its contribution; the owner adds the
// contributions in rank order 0, 1, ... and sends the result to all ranks.
//
// What moves where, four ranks, one round of four pieces a b c d (rank 0 owns piece a, rank 1 owns b, ...; "b1" is rank 1's
// contribution to b):
//
//                rank 0           rank 1           rank 2           rank 3
//   shift 1      b0 -> 1          c1 -> 2          d2 -> 3          a3 -> 0
//   shift 2      c0 -> 2          d1 -> 3          a2 -> 0          b3 -> 1
//   shift 3      d0 -> 3          a1 -> 0          b2 -> 1          c3 -> 2
//   adds         a0+a1+a2+a3      b0+b1+b2+b3      c0+c1+c2+c3      d0+d1+d2+d3   into the output
//   shift 1      a -> 1           b -> 2           c -> 3           d -> 0
//   shift 2, 3   a -> 2, 3        b -> 3, 0        c -> 0, 1        d -> 1, 2     all have a b c d
//
// The shifts do not wait for each other: a round has up to 16 contributions and 16 results under way in each direction, and up
// to four rounds run at once, each on its own channel (direct_reduction.h). The owner needs rank 0's contribution first, but
// all contributions arrive at about the same time. So the owner stages one piece of each rank. The more ranks there are, the
// smaller the pieces, so that staging needs at most about 8 MiB. The limit of a piece does not fall below 4 KiB, so staging
// grows from 512 ranks on.
//
// Cost for p ranks and S bytes in one round: 2 alpha + 2(p-1) o + 2(p-1)/p S beta + (p-1)/p S gamma (o: the sender's own time
// for a message). Bytes sent by each rank: 2(p-1)/p S. This holds for 16-bit floats as well, because contributions travel in
// the user's type (except those that are scaled first, see reducer.h) and only the owner holds float32 (with many ranks the
// ring sends almost 3/2 as much). The disadvantage is that a rank has p-1 partners instead of one: networks with few paths (a
// ring of slow links, a small switch) have more contention than with the ring.
//
// It cannot deadlock: a rank's s-th receive waits only for receives of smaller shifts, a scatter send only for sends of smaller
// shifts and the owner's receive, and the gather only for the scatter. The owner waits for contributions, and no rank waits for
// a result before it has sent all its contributions of the round.
//
// In place: a rank receives the result of a piece only after it has sent its contribution to the piece, and an owner overwrites
// its own contribution in the step that adds the last one.
//
// All ranks get the same bits because only the owner computes a piece. Layout-independent: every owner adds the contributions
// to an element in the same order, so the bits do not depend on the element's place, on how the buffer was cut, or on timing.
//
// Source: the pairwise-exchange reduce-scatter and allgather in Thakur, Rabenseifner and Gropp, Optimization of collective
// communication operations in MPICH (IJHPCA 19, 2005), with a fixed order of additions.
#include "collectives/algorithms.h"
#include "collectives/direct_reduction.h"

namespace hvdlite::collectives {

std::unique_ptr<Collective> allreduce_direct(Comm comm, AllreduceArgs args, const Tuning& tuning) {
  return reduce_in_lanes<DirectLane>(comm, args, tuning);
}

}  // namespace hvdlite::collectives
