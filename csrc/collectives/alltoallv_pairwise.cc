// Pairwise alltoall of uneven parts: in shift s every rank sends to the rank s places to its right
// and receives from the one s places to its left.
//
// What moves where, four ranks ("01" is rank 0's part for rank 1):
//
//                rank 0           rank 1           rank 2           rank 3
//   shift 0      00 copied        11 copied        22 copied        33 copied
//   shift 1      01 -> 1          12 -> 2          23 -> 3          30 -> 0
//   shift 2      02 -> 2          13 -> 3          20 -> 0          31 -> 1
//   shift 3      03 -> 3          10 -> 0          21 -> 1          32 -> 2
//
// The shifts do not wait for each other. pairwise_exchange.h says why it cannot deadlock.
//
// Cost for p ranks of which each sends S bytes evenly: alpha + (p-1) o + (p-1)/p S beta (o: the
// sender's own time for a message). Bytes sent by a rank: its input without the part for itself.
//
// All bytes are copied, never computed.
//
// Source: the pairwise exchange in Thakur, Rabenseifner and Gropp, Optimization of collective
// communication operations in MPICH (IJHPCA 19, 2005), section 4.4.
#include <utility>

#include "collectives/algorithms.h"
#include "collectives/pairwise_exchange.h"

namespace hvdlite::collectives {

std::unique_ptr<Collective> alltoallv_pairwise(Comm comm, AlltoallvArgs args, const Tuning&) {
  return std::make_unique<PairwiseExchange>(std::move(comm), args.input, runs_of(args.send_bytes),
                                            args.output, runs_of(args.recv_bytes));
}

}  // namespace hvdlite::collectives
