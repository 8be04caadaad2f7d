// Direct allgather of uneven parts: every rank sends its part to every other rank.
//
// What moves where, four ranks with parts a b c d:
//
//                rank 0           rank 1           rank 2           rank 3
//   shift 0      a copied         b copied         c copied         d copied
//   shift 1      a -> 1           b -> 2           c -> 3           d -> 0
//   shift 2      a -> 2           b -> 3           c -> 0           d -> 1
//   shift 3      a -> 3           b -> 0           c -> 1           d -> 2
//
// The shifts do not wait for each other. pairwise_exchange.h says why it cannot deadlock.
//
// Cost for p ranks, parts of m_r bytes, S bytes in all: alpha + (p-1) o + max(S - min(m), (p-1) max(m)) beta (o: the sender's
// own time for a message). So it waits for one message where the ring waits for p-1 in turn, and is slower if one part is much
// larger than the others. Bytes sent by rank r: (p-1) m_r.
//
// In place: a rank's own part already lies at its place in the output, and no other part is written there.
//
// All ranks get the same bytes: they are copied, never computed.
//
// Source: the linear allgather of MPI libraries, such as Open MPI's; the order of its messages is that of the pairwise exchange
// in Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH (IJHPCA 19, 2005), section
// 4.4.
#include <utility>

#include "collectives/algorithms.h"
#include "collectives/pairwise_exchange.h"

namespace hvdlite::collectives {

std::unique_ptr<Collective> allgatherv_direct(Comm comm, AllgathervArgs args, const Tuning&) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  const std::vector<Range> sent(args.bytes.size(), Range{0, args.bytes.at(rank)});
  return std::make_unique<PairwiseExchange>(std::move(comm), args.input, sent, args.output,
                                            runs_of(args.bytes));
}

}  // namespace hvdlite::collectives
