// The exchange that allreduce_direct and reducescatter_direct share: every rank sends its contribution to a piece directly to
// the piece's owner, which adds the contributions in rank order. The algorithms' own files explain it with an example.
//
// In a round of a lane (lanes.h), rank r works through shifts s = 1 .. n-1 (Shifts, pairwise_exchange.h):
//   scatter: send the contribution to piece r+s to rank r+s, receive one to piece r from rank r-s
//   gather (allreduce only): send the finished piece r to rank r+s, receive piece r-s from r-s
// So at any time only a few ranks send to the same rank.
//
// Thread: the holder of the progress token. Owns: nothing but tickets. Blocks: no. Throws: what Transport throws.
#pragma once

#include "collectives/lanes.h"
#include "collectives/pairwise_exchange.h"

namespace hvdlite::collectives {

class DirectLane {
 public:
  static std::size_t piece_limit(const Reduction& reduction, int ranks, const Tuning& tuning);
  static std::size_t staging_bytes(const ReductionJob& job);

  DirectLane(ReductionJob& job, int channel, std::byte* memory);
  bool advance();

 private:
  bool scatter();
  void add_in_rank_order();
  bool gather();

  std::byte* slot(int rank) const {
    return contributions_ + (scatter_.shift_of(rank) - 1) * slot_bytes_;
  }
  const std::byte* contribution(int rank, const Range& piece) const;

  ReductionJob* job_;
  std::byte* contributions_;  // of the ranks 1, 2, ... places to the left
  std::size_t slot_bytes_;
  std::byte* partial_;
  std::size_t round_;
  int added_ = 0;  // ranks 0 .. added_-1 are in the partial (rank 0 waits for rank 1)
  Shifts scatter_;
  Shifts gather_;
};

// The most bytes of a piece: those of a segment, or fewer if there are many ranks (kStagingBytes in the .cc file).
std::size_t direct_piece_bytes(const Tuning& tuning, int ranks);

}  // namespace hvdlite::collectives
