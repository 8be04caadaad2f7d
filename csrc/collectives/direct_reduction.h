// The exchange that allreduce_direct and reducescatter_direct share: every rank sends its contribution to a piece directly to
// the piece's owner, which adds the contributions in rank order. The algorithms' own files explain it with an example.
//
// A lane runs one round of pieces at a time, on a channel of its own; of L lanes, lane i runs the rounds i, i + L, ... one
// after the other. In a round, rank r works through shifts s = 1 .. n-1, up to 16 of them at once (InFlight):
//   scatter: send the contribution to piece r+s to rank r+s, receive one to piece r from rank r-s
//   gather (allreduce only): send the finished piece r to rank r+s, receive piece r-s from r-s
// So at any time only a few ranks send to the same rank.
//
// Thread: the holder of the progress token. Owns: staging. Blocks: no. Throws: what Transport throws.
#pragma once

#include <vector>

#include "collectives/chunking.h"
#include "collectives/collective.h"
#include "collectives/in_flight.h"
#include "collectives/reducer.h"
#include "collectives/staging.h"

namespace hvdlite::collectives {

// The data that all lanes of one operation share. It outlives the lanes.
struct DirectJob {
  Comm comm;
  ElementReducer reducer;
  Pieces pieces;
  std::byte* output;
  bool gather;  // allreduce: hand the finished pieces out
  int lanes;
  std::shared_ptr<StagingCache> cache;
};

class DirectLane {
 public:
  // contributions: room for size-1 pieces of slot_bytes; partial: for one piece of partials.
  DirectLane(DirectJob& job, int channel, std::byte* contributions, std::size_t slot_bytes,
             std::byte* partial);

  // True once all rounds of this lane are done.
  bool advance();

 private:
  bool advance_round();
  bool scatter();
  void add_in_rank_order();
  bool gather();

  int peer(std::size_t shift) const;
  bool has_arrived(int rank) const;
  const std::byte* contribution(int rank, const Range& piece) const;
  std::byte* place(const Range& piece) const;

  DirectJob* job_;
  int channel_;
  std::byte* contributions_;  // of the rank `shift` places to the left, in slot shift-1
  std::size_t slot_bytes_;
  std::byte* partial_;
  std::size_t shifts_;  // n-1

  std::size_t round_;
  int added_ = 0;  // ranks 0 .. added_-1 are in the partial (rank 0 waits for rank 1)
  InFlight scatter_sends_;
  InFlight scatter_receives_;
  InFlight gather_sends_;
  InFlight gather_receives_;
};

class DirectReduction final : public Collective {
 public:
  explicit DirectReduction(DirectJob job);
  bool advance() override;

 private:
  DirectJob job_;
  std::size_t slot_bytes_;
  Staging contributions_;
  Staging partials_;
  std::vector<DirectLane> lanes_;
  bool alone_done_ = false;
};

// The most elements of a piece: a segment at most, and fewer with many ranks (kStagingBytes in the .cc file).
std::size_t direct_piece_limit(const Tuning& tuning, int ranks, std::size_t element_bytes);
// The number of lanes for this many rounds.
int direct_lanes(std::size_t rounds);

}  // namespace hvdlite::collectives
