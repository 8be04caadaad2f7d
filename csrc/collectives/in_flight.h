// A bounded number of sends or receives under way, completed in the order of posting. The bound keeps the transport's queues
// short for hundreds of ranks or segments.
// Thread: the holder of the progress token. Owns: the tickets under way. Blocks: no. Throws: what
// Transport throws.
#pragma once

#include <array>
#include <cstddef>

#include "collectives/comm.h"

namespace hvdlite::collectives {

class InFlight {
 public:
  static constexpr std::size_t kSize = 16;

  std::size_t posted() const { return posted_; }
  std::size_t done() const { return done_; }
  bool has_room() const { return posted_ - done_ < kSize; }

  // Call it only if has_room(). An empty ticket stands for a message of no bytes, which is not posted.
  void push(transport::Ticket ticket) { tickets_[posted_++ % kSize] = ticket; }

  // Completes transfers in order, up to the first that is still under way. Returns true if any completed.
  bool drain(Comm& comm) {
    const std::size_t before = done_;
    while (done_ < posted_ && comm.test(tickets_[done_ % kSize])) ++done_;
    return done_ != before;
  }

  void reset() { posted_ = done_ = 0; }  // allowed only if no transfer is under way

 private:
  std::size_t posted_ = 0;
  std::size_t done_ = 0;
  std::array<transport::Ticket, kSize> tickets_;
};

}  // namespace hvdlite::collectives
