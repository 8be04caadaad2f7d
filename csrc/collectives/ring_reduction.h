// The ring that allreduce_ring and reducescatter_ring share: pieces of a buffer travel from rank to
// rank and grow by one contribution a hop. The algorithms' own files explain it with an example.
//
// A lane moves one round of pieces at a time around the ring, on a channel of its own. Of L lanes, lane i takes the rounds i, i
// + L, i + 2L, ... one after the other. So the transfers of one lane overlap with the additions of the others, and the staging
// memory does not grow with the buffer.
//
// Hops of a lane on rank r of n, in order:
//   reduce hop s = 0 .. n-2: send piece r-1-s, receive piece r-2-s and add the own contribution.
//     Hop 0 sends the contribution itself, from the user's input; later hops send what was received
//     and added to. After hop n-2 rank r holds the finished piece r and writes it to the output.
//   gather hop n-1+t, t = 0 .. n-2 (allreduce only): send piece r-t, receive piece r-1-t straight
//     into the output.
//
// Thread: the holder of the progress token. Owns: staging. Blocks: no. Throws: what Transport throws.
#pragma once

#include <array>
#include <vector>

#include "collectives/chunking.h"
#include "collectives/collective.h"
#include "collectives/reducer.h"
#include "collectives/staging.h"

namespace hvdlite::collectives {

// The data that all lanes of one operation share. It outlives the lanes.
struct RingJob {
  Comm comm;
  ElementReducer reducer;
  Pieces pieces;
  std::byte* output;
  bool gather;  // allreduce: pass the finished pieces on
  int lanes;
  std::shared_ptr<StagingCache> cache;
};

class RingLane {
 public:
  RingLane(RingJob& job, int channel, std::array<std::byte*, 2> staging, std::byte* first);

  // True once all rounds of this lane are done.
  bool advance();

 private:
  bool advance_round();
  void post_receive();
  void post_sends();
  void process(int hop);
  bool send_done(int hop);

  Range piece_sent(int hop) const;
  Range piece_received(int hop) const;
  std::byte* place(const Range& piece) const;
  bool reduces(int hop) const { return hop < job_->comm.size() - 1; }

  RingJob* job_;
  int channel_;
  std::array<std::byte*, 2> staging_;  // hop s receives into staging_[s % 2]
  std::byte* first_;                   // for hop 0, if contributions are no partials
  int hops_;

  std::size_t round_;
  int posted_ = 0;   // receives posted: all hops below; at most one of them has not arrived
  int arrived_ = 0;  // receives completed
  int processed_ = 0;
  int sent_ = 0;  // sends posted; those of hop s and s+1 may be under way together
  transport::Ticket receive_;
  std::array<transport::Ticket, 2> sends_;  // hop s in sends_[s % 2]
};

class RingReduction final : public Collective {
 public:
  explicit RingReduction(RingJob job);
  bool advance() override;

 private:
  RingJob job_;
  Staging staging_;
  Staging first_;
  std::vector<RingLane> lanes_;
  bool alone_done_ = false;
};

// The number of lanes for this many rounds.
int ring_lanes(std::size_t rounds);

}  // namespace hvdlite::collectives
