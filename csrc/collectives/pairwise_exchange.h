// The exchange that alltoallv_pairwise and allgatherv_direct share: each rank sends one run of its input to each other rank. In
// shift s every rank sends to the rank s places to its right and receives from the one s places to its left.
//
// The shifts do not wait for each other; up to 16 of each direction are under way, so that with hundreds of ranks no rank gets
// messages from all others at once. Runs go from the input into the output without staging, those of zero bytes are not sent.
//
// It cannot deadlock: the s-th receive waits only for receives of smaller shifts and the s-th send only for sends of smaller
// shifts; shift s of all ranks is a perfect matching of sends and receives, so by induction on s each completes.
//
// Thread: the holder of the progress token. Owns: nothing but the sizes. Blocks: no. Throws: what Transport throws.
#pragma once

#include <vector>

#include "collectives/chunking.h"
#include "collectives/collective.h"
#include "collectives/comm.h"
#include "collectives/in_flight.h"

namespace hvdlite::collectives {

class PairwiseExchange final : public Collective {
 public:
  // sent[r]: the bytes of the input for rank r; received[r]: where those of rank r belong in the output. What this rank sends
  // itself may lie in its place already.
  PairwiseExchange(Comm comm, const void* input, std::vector<Range> sent, void* output,
                   std::vector<Range> received);
  bool advance() override;

 private:
  std::size_t wrap(std::size_t rank) const { return rank % sent_.size(); }
  std::size_t own_rank() const { return static_cast<std::size_t>(comm_.rank()); }
  void post_receive();
  void post_send();
  void copy_own();

  Comm comm_;
  const std::byte* input_;
  std::byte* output_;
  std::vector<Range> sent_;
  std::vector<Range> received_;
  std::size_t shifts_;  // p-1
  InFlight receives_;
  InFlight sends_;
  bool copied_ = false;
};

}  // namespace hvdlite::collectives
