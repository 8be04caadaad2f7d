// Chain broadcast: the root sends to its right neighbour, which sends on to its own right neighbour, segment by segment. Each
// rank sends the data at most once, so large data take less time than in the binomial tree.
//
// What moves where, four ranks, root 0, three segments x y z (for another root: a number n in the drawing is the n-th rank to
// the right of the root):
//
//   time 1   0 -x-> 1
//   time 2   0 -y-> 1   1 -x-> 2
//   time 3   0 -z-> 1   1 -y-> 2   2 -x-> 3
//   time 4              1 -z-> 2   2 -y-> 3
//   time 5                         2 -z-> 3
//
// Up to 16 segments are under way on each link (broadcast_stream.h).
//
// Cost for p ranks and S bytes in K segments: (K + p - 2) (alpha + S/K beta), against ceil(log2 p) K segment times of the
// binomial tree. It is faster if K is large compared with p, and takes about S beta for large data. Bytes sent: S by
// each rank except the last.
//
// It cannot deadlock: a rank's receives wait only for its left neighbour and for earlier receives, not for its own sends, and
// the root receives nothing.
//
// All ranks get the same bytes: they are copied, never computed.
//
// Source: the pipelined chain of Watts and van de Geijn, A pipelined broadcast for multidimensional
// meshes (Parallel Processing Letters 5, 1995).
#include "collectives/algorithms.h"
#include "collectives/broadcast_stream.h"

namespace hvdlite::collectives {

std::unique_ptr<Collective> broadcast_chain(Comm comm, BroadcastArgs args, const Tuning& tuning) {
  const int size = comm.size();
  const int number = (comm.rank() - args.root + size) % size;  // counted from the root on
  Branch branch;
  if (number > 0) branch.parent = (comm.rank() + size - 1) % size;
  if (number + 1 < size) branch.children.push_back((comm.rank() + 1) % size);
  return std::make_unique<BroadcastStream>(std::move(comm), args, tuning, branch);
}

}  // namespace hvdlite::collectives
