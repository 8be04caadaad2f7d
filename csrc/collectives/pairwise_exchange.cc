#include "collectives/pairwise_exchange.h"

#include <utility>

#include "base/error.h"
#include "kernels/stream.h"

namespace hvdlite::collectives {

PairwiseExchange::PairwiseExchange(Comm comm, const void* input, std::vector<Range> sent,
                                   void* output, std::vector<Range> received)
    : comm_(std::move(comm)),
      input_(static_cast<const std::byte*>(input)),
      output_(static_cast<std::byte*>(output)),
      sent_(std::move(sent)),
      received_(std::move(received)),
      shifts_(static_cast<std::size_t>(comm_.size() - 1)) {
  const auto size = static_cast<std::size_t>(comm_.size());
  HVD_CHECK(sent_.size() == size && received_.size() == size);
  HVD_CHECK(sent_[own_rank()].count == received_[own_rank()].count);
}

bool PairwiseExchange::advance() {
  bool moved = true;
  while (moved) {
    while (receives_.posted() < shifts_ && receives_.has_room()) post_receive();
    while (sends_.posted() < shifts_ && sends_.has_room()) post_send();
    moved = receives_.drain(comm_);
    moved = sends_.drain(comm_) || moved;
  }
  copy_own();  // after the first posts, so that the transfers run during the copy
  return receives_.done() == shifts_ && sends_.done() == shifts_;
}

void PairwiseExchange::post_receive() {
  const std::size_t source = wrap(own_rank() + shifts_ - receives_.posted());
  const Range& run = received_[source];
  receives_.push(run.count == 0
                     ? transport::Ticket{}
                     : comm_.recv(static_cast<int>(source), 0, output_ + run.offset, run.count));
}

void PairwiseExchange::post_send() {
  const std::size_t target = wrap(own_rank() + sends_.posted() + 1);
  const Range& run = sent_[target];
  sends_.push(run.count == 0
                  ? transport::Ticket{}
                  : comm_.send(static_cast<int>(target), 0, input_ + run.offset, run.count));
}

void PairwiseExchange::copy_own() {
  if (copied_) return;
  copied_ = true;
  const Range& run = sent_[own_rank()];
  std::byte* const place = output_ + received_[own_rank()].offset;
  if (run.count > 0 && place != input_ + run.offset) {
    kernels::plain_copy(place, input_ + run.offset, run.count);
  }
}

}  // namespace hvdlite::collectives
