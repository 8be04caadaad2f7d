#include "collectives/ring_reduction.h"

#include "base/cache_line.h"

namespace hvdlite::collectives {

namespace {

int wrap(int rank, int size) { return ((rank % size) + size) % size; }

std::size_t partial_room(const ReductionJob& job) {
  return base::round_up_to_cache_lines(job.pieces.largest() * job.reducer.partial_bytes());
}

}  // namespace

std::size_t RingLane::piece_limit(const Reduction& reduction, int, const Tuning& tuning) {
  const base::DType accumulator = kernels::accumulator_of(reduction.dtype, reduction.op);
  return tuning.segment_bytes / base::size_of(accumulator);
}

// Two pieces of partials, and one of contributions if those are no partials. So the staging of four lanes takes 2 to 3 MiB with
// the usual segments, about as much as a core's second-level cache has.
std::size_t RingLane::staging_bytes(const ReductionJob& job) {
  const std::size_t first = job.reducer.contributions_are_partials()
                                ? 0
                                : job.pieces.largest() * job.reducer.contribution_bytes();
  return 2 * partial_room(job) + first;
}

RingLane::RingLane(ReductionJob& job, int channel, std::byte* memory)
    : job_(&job),
      channel_(channel),
      staging_{memory, memory + partial_room(job)},
      first_(job.reducer.contributions_are_partials() ? nullptr : memory + 2 * partial_room(job)),
      hops_((job.gather ? 2 : 1) * (job.comm.size() - 1)),
      round_(static_cast<std::size_t>(channel)) {}

bool RingLane::advance() {
  while (round_ < job_->pieces.rounds()) {
    if (!advance_round()) return false;
    round_ += job_->lanes();
    posted_ = arrived_ = processed_ = sent_ = 0;
  }
  return true;
}

bool RingLane::advance_round() {
  post_receive();
  post_sends();
  while (arrived_ < posted_ && job_->comm.test(receive_)) {
    ++arrived_;
    post_receive();  // before the addition, so that the next transfer runs during the addition
    process(arrived_ - 1);
    ++processed_;
    post_sends();
    post_receive();
  }
  return processed_ == hops_ && sent_ == hops_ && job_->comm.test(sends_[0]) &&
         job_->comm.test(sends_[1]);
}

// Has the send of this hop completed? Its place in sends_ is used again, by hop + 2, only after that.
bool RingLane::send_done(int hop) {
  if (sent_ <= hop) return false;
  return sent_ > hop + 2 || job_->comm.test(sends_[static_cast<std::size_t>(hop % 2)]);
}

// Posts the next receive if the one before has arrived and its destination is free.
void RingLane::post_receive() {
  if (posted_ == hops_ || posted_ > arrived_) return;
  const int hop = posted_;
  const int size = job_->comm.size();
  const Range piece = piece_received(hop);
  std::byte* target = nullptr;
  std::size_t element_bytes = 0;
  if (reduces(hop)) {
    // This staging buffer was received into at hop-2 and sent from at hop-1.
    if (hop >= 2 && !send_done(hop - 1)) return;
    const bool raw = hop == 0 && first_ != nullptr;
    target = raw ? first_ : staging_[static_cast<std::size_t>(hop % 2)];
    element_bytes = hop == 0 ? job_->reducer.contribution_bytes() : job_->reducer.partial_bytes();
  } else {
    // In place, a finished piece overwrites this rank's contribution to it, which must not be needed any more. The contribution
    // to piece r-1 was sent at hop 0, every other one was added at a reduce hop.
    if (hop == size - 1 && !send_done(0)) return;
    target = job_->place(piece);
    element_bytes = job_->reducer.result_bytes();
  }
  if (piece.count > 0) {
    const int left = wrap(job_->comm.rank() - 1, size);
    receive_ = job_->comm.recv(left, channel_, target, piece.count * element_bytes);
  }
  ++posted_;
}

// Posts every send whose bytes are there: hop s needs hop s-1 processed.
void RingLane::post_sends() {
  while (sent_ < hops_ && sent_ <= processed_) {
    const int hop = sent_;
    transport::Ticket& ticket = sends_[static_cast<std::size_t>(hop % 2)];
    if (!job_->comm.test(ticket)) return;
    const Range piece = piece_sent(hop);
    const std::byte* source = nullptr;
    std::size_t element_bytes = 0;
    if (hop == 0) {
      source = job_->reducer.own(piece.offset);
      element_bytes = job_->reducer.contribution_bytes();
    } else if (reduces(hop)) {
      source = staging_[static_cast<std::size_t>((hop - 1) % 2)];
      element_bytes = job_->reducer.partial_bytes();
    } else {
      source = job_->place(piece);
      element_bytes = job_->reducer.result_bytes();
    }
    if (piece.count > 0) {
      const int right = wrap(job_->comm.rank() + 1, job_->comm.size());
      ticket = job_->comm.send(right, channel_, source, piece.count * element_bytes);
    }
    ++sent_;
  }
}

// Adds this rank's contribution to the piece that has arrived, if the hop is a reduce hop.
void RingLane::process(int hop) {
  if (!reduces(hop)) return;
  const Range piece = piece_received(hop);
  if (piece.count == 0) return;
  const ElementReducer& reducer = job_->reducer;
  const std::byte* const own = reducer.own(piece.offset);
  std::byte* const partial = staging_[static_cast<std::size_t>(hop % 2)];
  const bool last = hop == job_->comm.size() - 2;
  if (hop == 0) {
    const std::byte* const arrived = first_ != nullptr ? first_ : partial;
    if (last) {
      reducer.begin_and_finish(job_->place(piece), partial, arrived, own, piece.count);
    } else {
      reducer.begin(partial, arrived, own, piece.count);
    }
  } else if (last) {
    reducer.add_and_finish(job_->place(piece), partial, own, piece.count);
  } else {
    reducer.add(partial, own, piece.count);
  }
}

Range RingLane::piece_sent(int hop) const {
  const int steps = reduces(hop) ? hop + 1 : hop - (job_->comm.size() - 1);
  return job_->pieces.piece(round_, wrap(job_->comm.rank() - steps, job_->comm.size()));
}

Range RingLane::piece_received(int hop) const {
  const int steps = reduces(hop) ? hop + 2 : hop - (job_->comm.size() - 1) + 1;
  return job_->pieces.piece(round_, wrap(job_->comm.rank() - steps, job_->comm.size()));
}

}  // namespace hvdlite::collectives
