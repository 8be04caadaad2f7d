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
      shifts_(comm_, /*channel=*/0) {
  const auto size = static_cast<std::size_t>(comm_.size());
  const auto own = static_cast<std::size_t>(comm_.rank());
  HVD_CHECK(sent_.size() == size && received_.size() == size);
  HVD_CHECK(sent_[own].count == received_[own].count);
}

bool PairwiseExchange::advance() {
  const bool done = shifts_.advance(
      [&](int rank) {
        const Range& run = received_[static_cast<std::size_t>(rank)];
        return std::span(output_ + run.offset, run.count);
      },
      [&](int rank) {
        const Range& run = sent_[static_cast<std::size_t>(rank)];
        return std::span(input_ + run.offset, run.count);
      });
  copy_own();  // after the first posts, so that the transfers run during the copy
  return done;
}

void PairwiseExchange::copy_own() {
  if (copied_) return;
  copied_ = true;
  const auto own = static_cast<std::size_t>(comm_.rank());
  const std::byte* const from = input_ + sent_[own].offset;
  std::byte* const to = output_ + received_[own].offset;
  if (sent_[own].count > 0 && to != from) kernels::plain_copy(to, from, sent_[own].count);
}

}  // namespace hvdlite::collectives
