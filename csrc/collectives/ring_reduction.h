// The ring that allreduce_ring and reducescatter_ring share: pieces of a buffer travel from rank to
// rank and grow by one contribution a hop. The algorithms' own files explain it with an example.
//
// A lane (lanes.h) moves one round of pieces at a time around the ring. Hops of a lane on rank r of n, in order:
//   reduce hop s = 0 .. n-2: send piece r-1-s, receive piece r-2-s and add the own contribution.
//     Hop 0 sends the contribution itself, from the user's input; each later reduce hop sends the partial that the hop before
//     has received and added to. After hop n-2 rank r holds the finished piece r and writes it to the output.
//   gather hop n-1+t, t = 0 .. n-2 (allreduce only): send piece r-t, receive piece r-1-t straight
//     into the output.
//
// Thread: the holder of the progress token. Owns: nothing but tickets. Blocks: no. Throws: what Transport throws.
#pragma once

#include <array>

#include "collectives/lanes.h"

namespace hvdlite::collectives {

class RingLane {
 public:
  static std::size_t piece_limit(const Reduction& reduction, int ranks, const Tuning& tuning);
  static std::size_t staging_bytes(const ReductionJob& job);

  RingLane(ReductionJob& job, int channel, std::byte* memory);
  bool advance();

 private:
  bool advance_round();
  void post_receive();
  void post_sends();
  void process(int hop);
  bool send_done(int hop);

  Range piece_sent(int hop) const;
  Range piece_received(int hop) const;
  bool reduces(int hop) const { return hop < job_->comm.size() - 1; }

  ReductionJob* job_;
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

}  // namespace hvdlite::collectives
