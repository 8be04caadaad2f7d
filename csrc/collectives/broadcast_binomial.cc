// Binomial broadcast: the root sends to the first rank of the other half. Then both do the same in their own half, and so on.
// It has the fewest messages that wait for each other.
//
// What moves where, four ranks, root 0 (for another root: a number n in the drawing is the n-th rank to the right of the root):
//
//   0 -> 2, then 0 -> 1 and 2 -> 3        tree:  0 --- 2 --- 3
//                                                 `--- 1
//
// A rank's parent is its number without the lowest set bit; its children are its number plus every power of two that is smaller
// than this bit, the child with the largest subtree first. (The root's number is 0, so for the root every power of two below p
// counts.) Large data goes in segments, of which up to 16 are under way to each neighbour (broadcast_stream.h), so that a rank
// sends on what it has while it still receives.
//
// Cost for p ranks and S bytes: ceil(log2 p) (alpha + S beta). Segments do not change the second
// term, since the root itself sends ceil(log2 p) S: broadcast_chain is for large data. Bytes sent:
// S for each child.
//
// It cannot deadlock: a rank's receives wait only for its parent and for earlier receives, not for its own sends, and the root
// receives nothing.
//
// All ranks get the same bytes: they are copied, never computed.
//
// Source: binomial trees as in Thakur, Rabenseifner and Gropp, Optimization of collective
// communication operations in MPICH (IJHPCA 19, 2005), section 4.3.
#include "collectives/algorithms.h"
#include "collectives/broadcast_stream.h"

namespace hvdlite::collectives {

std::unique_ptr<Collective> broadcast_binomial(Comm comm, BroadcastArgs args,
                                               const Tuning& tuning) {
  const int size = comm.size();
  const int number = (comm.rank() - args.root + size) % size;  // counted from the root on
  int bit = 1;
  while (bit < size && (number & bit) == 0) bit *= 2;
  Branch branch;
  if (number != 0) branch.parent = (number - bit + args.root) % size;
  for (bit /= 2; bit > 0; bit /= 2) {
    if (number + bit < size) branch.children.push_back((number + bit + args.root) % size);
  }
  return std::make_unique<BroadcastStream>(std::move(comm), args, tuning, branch);
}

}  // namespace hvdlite::collectives
