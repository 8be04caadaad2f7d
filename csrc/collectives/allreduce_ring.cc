// Ring allreduce: a reduce-scatter around a ring, then an allgather around it. It sends the fewest bytes.
//
// What moves where, four ranks, one round of four pieces a b c d (piece r ends up owned by rank r;
// "b1" is rank 1's contribution to b, "b12" the partial b1 op b2; every arrow goes to the right
// neighbour r+1, rank 3's to rank 0):
//
//                rank 0           rank 1           rank 2           rank 3
//   hop 0 sends  d0 ->            a1 ->            b2 ->            c3 ->
//   holds        c30              d01              a12              b23
//   hop 1 sends  c30 ->           d01 ->           a12 ->           b23 ->
//   holds        b230             c301             d012             a123
//   hop 2 sends  b230 ->          c301 ->          d012 ->          a123 ->
//   finishes     a = a1230        b = b2301        c = c3012        d = d0123     into the output
//   hop 3 sends  a ->             b ->             c ->             d ->
//   hop 4 sends  d ->             a ->             b ->             c ->
//   hop 5 sends  c ->             d ->             a ->             b ->          all have a b c d
//
// The buffer is cut into rounds of (ranks x segment). Up to four rounds are under way at once, each in a lane on a channel of
// its own (ring_reduction.h), so that transfers and additions overlap. Staging needs two segments for each round under way, and
// a third if contributions are no partials (reducer.h), for any size of the buffer. The input is read in the user's memory, and
// results are received into the user's output: nothing is packed.
//
// Cost for p ranks and S bytes in one round: 2(p-1) alpha + 2(p-1)/p S beta + (p-1)/p S gamma; in K
// rounds the first term becomes about 2(p-1) max(1, K/4) alpha. Bytes sent by each rank: 2(p-1)/p S; for 16-bit floats (3p-4)/p
// S, because partials travel as float32 (hop 0 carries contributions, which still have 16 bits).
//
// It cannot deadlock: hop s of a rank waits only for hop s-1 of its left neighbour and for the right neighbour's receive of an
// earlier hop. Hop 0 waits only for the round before on its channel. Rounds on different channels do not wait for each other.
//
// In place: a piece of the input is read for the last time when it is sent (hop 0) or added
// (reduce hops), and its result is received only after that (RingLane::post_receive).
//
// All ranks get the same bits because each piece is added along one chain and finished once, by its owner; the others copy. The
// order of additions starts with the rank after the owner, so it depends on the element's place in the buffer: from three ranks
// on the algorithm is not layout-independent.
//
// Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations
// (JPDC 69, 2009); first used for training by Gibiansky, baidu-allreduce (2017).
#include "collectives/algorithms.h"
#include "collectives/ring_reduction.h"

namespace hvdlite::collectives {

std::unique_ptr<Collective> allreduce_ring(Comm comm, AllreduceArgs args, const Tuning& tuning) {
  return reduce_in_lanes<RingLane>(comm, args, tuning);
}

}  // namespace hvdlite::collectives
