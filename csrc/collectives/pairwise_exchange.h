// The exchange in which each rank sends one message to each other rank. In shift s every rank sends to the rank s places to its
// right and receives from the one s places to its left. alltoallv_pairwise and allgatherv_direct consist of one such exchange,
// and allreduce_direct, reducescatter_direct and allreduce_coded of several.
//
// The shifts do not wait for each other; up to 16 of each direction are under way, so that with hundreds of ranks no rank gets
// messages from all others at once. Messages of zero bytes are not sent.
//
// It cannot deadlock: the s-th receive waits only for receives of smaller shifts and the s-th send only for sends of smaller
// shifts; shift s of all ranks is a perfect matching of sends and receives, so by induction on s each completes.
//
// Thread: the holder of the progress token. Owns: nothing but tickets and sizes. Blocks: no. Throws: what Transport throws.
#pragma once

#include <span>
#include <vector>

#include "collectives/chunking.h"
#include "collectives/collective.h"
#include "collectives/comm.h"
#include "collectives/in_flight.h"

namespace hvdlite::collectives {

class Shifts {
 public:
  // The Comm outlives it.
  Shifts(Comm& comm, int channel)
      : comm_(&comm), channel_(channel), last_(static_cast<std::size_t>(comm.size() - 1)) {}

  // Posts and completes what it can. place_for(rank) is the memory for the message from a rank, message_to(rank) the bytes for
  // it; each is called once for each other rank, when the transfer is posted. Returns true when all transfers are complete.
  template <typename PlaceFor, typename MessageTo>
  bool advance(PlaceFor place_for, MessageTo message_to, bool may_send = true) {
    for (bool moved = true; moved;) {
      while (receives_.posted() < last_ && receives_.has_room()) {
        const int from = sender_in(receives_.posted() + 1);
        const std::span<std::byte> place = place_for(from);
        receives_.push(place.empty() ? transport::Ticket{}
                                     : comm_->recv(from, channel_, place.data(), place.size()));
      }
      while (may_send && sends_.posted() < last_ && sends_.has_room()) {
        const int to = to_the_right(sends_.posted() + 1);
        const std::span<const std::byte> message = message_to(to);
        sends_.push(message.empty() ? transport::Ticket{}
                                    : comm_->send(to, channel_, message.data(), message.size()));
      }
      moved = receives_.drain(*comm_);
      moved = sends_.drain(*comm_) || moved;
      moved = moved && (receives_.posted() < last_ || sends_.posted() < last_);
    }
    return receives_.done() == last_ && sends_.done() == last_;
  }

  // How many messages have arrived: they are those of the shifts 1, 2, ..., arrived().
  std::size_t arrived() const { return receives_.done(); }
  // The shift in which a rank's message comes; 0 for this rank.
  std::size_t shift_of(int rank) const {
    return static_cast<std::size_t>((comm_->rank() - rank + comm_->size()) % comm_->size());
  }
  int sender_in(std::size_t shift) const { return to_the_right(last_ + 1 - shift); }
  bool has_arrived(int rank) const { return shift_of(rank) <= arrived(); }
  // Are all sends complete (then the memory that they read may be overwritten), and are all receives posted? Then another
  // exchange may begin on the channel.
  bool may_be_followed() const { return sends_.done() == last_ && receives_.posted() == last_; }
  // Begins again; allowed only when all transfers are complete, or before the first.
  void reset() {
    receives_.reset();
    sends_.reset();
  }

 private:
  int to_the_right(std::size_t places) const {
    return (comm_->rank() + static_cast<int>(places)) % comm_->size();
  }

  Comm* comm_;
  int channel_;
  std::size_t last_;  // p-1
  InFlight receives_;
  InFlight sends_;
};

class PairwiseExchange final : public Collective {
 public:
  // sent[r]: the bytes of the input for rank r; received[r]: where those of rank r belong in the output. What this rank sends
  // to itself may already lie at its place in the output. Nothing is staged.
  PairwiseExchange(Comm comm, const void* input, std::vector<Range> sent, void* output,
                   std::vector<Range> received);
  bool advance() override;

 private:
  void copy_own();

  Comm comm_;
  const std::byte* input_;
  std::byte* output_;
  std::vector<Range> sent_;
  std::vector<Range> received_;
  Shifts shifts_;
  bool copied_ = false;
};

}  // namespace hvdlite::collectives
