#include "collectives/direct_reduction.h"

#include <algorithm>
#include <utility>

#include "base/cache_line.h"

namespace hvdlite::collectives {

namespace {

constexpr std::size_t kDirectLanes = 4;
static_assert(kDirectLanes <= kPartChannels);

// Each lane stages a piece from every other rank. So with more ranks pieces are smaller, down to a size at which a message
// takes hardly more time than its latency. From 512 ranks on staging takes more than kStagingBytes.
constexpr std::size_t kStagingBytes = std::size_t{8} << 20;
constexpr std::size_t kSmallestPieceBytes = std::size_t{4} << 10;

}  // namespace

std::size_t direct_piece_limit(const Tuning& tuning, int ranks, std::size_t element_bytes) {
  const std::size_t share = kStagingBytes / (kDirectLanes * static_cast<std::size_t>(ranks));
  return std::min(tuning.segment_bytes, std::max(share, kSmallestPieceBytes)) / element_bytes;
}

int direct_lanes(std::size_t rounds) { return static_cast<int>(std::min(rounds, kDirectLanes)); }

DirectLane::DirectLane(DirectJob& job, int channel, std::byte* contributions,
                       std::size_t slot_bytes, std::byte* partial)
    : job_(&job),
      channel_(channel),
      contributions_(contributions),
      slot_bytes_(slot_bytes),
      partial_(partial),
      shifts_(static_cast<std::size_t>(job.comm.size() - 1)),
      round_(static_cast<std::size_t>(channel)) {}

bool DirectLane::advance() {
  while (round_ < job_->pieces.rounds()) {
    if (!advance_round()) return false;
    round_ += static_cast<std::size_t>(job_->lanes);
    added_ = 0;
    for (InFlight* window :
         {&scatter_sends_, &scatter_receives_, &gather_sends_, &gather_receives_}) {
      window->reset();
    }
  }
  return true;
}

bool DirectLane::advance_round() {
  const bool scattered = scatter();
  add_in_rank_order();
  if (job_->gather && !gather()) return false;
  return scattered && added_ == job_->comm.size();
}

// Sends contributions to their owners. Returns true when all sends and receives are complete.
bool DirectLane::scatter() {
  Comm& comm = job_->comm;
  const std::size_t bytes = job_->reducer.contribution_bytes();
  const std::size_t incoming = job_->pieces.piece(round_, comm.rank()).count * bytes;
  bool moved = true;
  while (moved) {
    while (scatter_receives_.posted() < shifts_ && scatter_receives_.has_room()) {
      const std::size_t shift = scatter_receives_.posted() + 1;
      std::byte* const slot = contributions_ + (shift - 1) * slot_bytes_;
      scatter_receives_.push(incoming == 0
                                 ? transport::Ticket{}
                                 : comm.recv(peer(shifts_ + 1 - shift), channel_, slot, incoming));
    }
    while (scatter_sends_.posted() < shifts_ && scatter_sends_.has_room()) {
      const int owner = peer(scatter_sends_.posted() + 1);
      const Range piece = job_->pieces.piece(round_, owner);
      scatter_sends_.push(
          piece.count == 0
              ? transport::Ticket{}
              : comm.send(owner, channel_, job_->reducer.own(piece.offset), piece.count * bytes));
    }
    moved = scatter_receives_.drain(comm);
    moved = scatter_sends_.drain(comm) || moved;
    moved = moved && (scatter_receives_.posted() < shifts_ || scatter_sends_.posted() < shifts_);
  }
  return scatter_receives_.done() == shifts_ && scatter_sends_.done() == shifts_;
}

// Adds contributions that have arrived, but never rank q+1's before rank q's.
void DirectLane::add_in_rank_order() {
  const int size = job_->comm.size();
  if (added_ == size) return;
  const ElementReducer& reducer = job_->reducer;
  const Range piece = job_->pieces.piece(round_, job_->comm.rank());
  for (; added_ < size && has_arrived(added_); ++added_) {
    if (added_ == 0 || piece.count == 0) continue;
    const bool last = added_ == size - 1;
    const std::byte* const next = contribution(added_, piece);
    if (added_ == 1 && last) {
      reducer.begin_and_finish(place(piece), partial_, contribution(0, piece), next, piece.count);
    } else if (added_ == 1) {
      reducer.begin(partial_, contribution(0, piece), next, piece.count);
    } else if (last) {
      reducer.add_and_finish(place(piece), partial_, next, piece.count);
    } else {
      reducer.add(partial_, next, piece.count);
    }
  }
}

// Sends finished pieces to all ranks. Returns true when all sends and receives are complete.
bool DirectLane::gather() {
  // In place, a finished piece overwrites this rank's contribution to it, so the contribution must have been sent. Between two
  // ranks the scatter message also has to be posted before the gather message, on both sides.
  if (scatter_sends_.done() < shifts_ || scatter_receives_.posted() < shifts_) return false;
  Comm& comm = job_->comm;
  const std::size_t bytes = job_->reducer.result_bytes();
  const bool finished = added_ == comm.size();
  bool moved = true;
  while (moved) {
    while (gather_receives_.posted() < shifts_ && gather_receives_.has_room()) {
      const int owner = peer(shifts_ - gather_receives_.posted());
      const Range piece = job_->pieces.piece(round_, owner);
      gather_receives_.push(piece.count == 0
                                ? transport::Ticket{}
                                : comm.recv(owner, channel_, place(piece), piece.count * bytes));
    }
    const Range mine = job_->pieces.piece(round_, comm.rank());
    while (finished && gather_sends_.posted() < shifts_ && gather_sends_.has_room()) {
      const int target = peer(gather_sends_.posted() + 1);
      gather_sends_.push(mine.count == 0
                             ? transport::Ticket{}
                             : comm.send(target, channel_, place(mine), mine.count * bytes));
    }
    moved = gather_receives_.drain(comm);
    moved = gather_sends_.drain(comm) || moved;
    moved = moved && (gather_receives_.posted() < shifts_ || gather_sends_.posted() < shifts_);
  }
  return gather_receives_.done() == shifts_ && gather_sends_.done() == shifts_;
}

// The rank `shift` places to the right; n - shift places to the right is `shift` to the left.
int DirectLane::peer(std::size_t shift) const {
  return (job_->comm.rank() + static_cast<int>(shift)) % job_->comm.size();
}

bool DirectLane::has_arrived(int rank) const {
  const int size = job_->comm.size();
  const int shift = (job_->comm.rank() - rank + size) % size;
  return static_cast<std::size_t>(shift) <= scatter_receives_.done();
}

const std::byte* DirectLane::contribution(int rank, const Range& piece) const {
  const int size = job_->comm.size();
  const int shift = (job_->comm.rank() - rank + size) % size;
  if (shift == 0) return job_->reducer.own(piece.offset);
  return contributions_ + static_cast<std::size_t>(shift - 1) * slot_bytes_;
}

std::byte* DirectLane::place(const Range& piece) const {
  const std::size_t begin = job_->gather ? 0 : job_->pieces.chunk_offset(job_->comm.rank());
  return job_->output + (piece.offset - begin) * job_->reducer.result_bytes();
}

DirectReduction::DirectReduction(DirectJob job)
    : job_(std::move(job)),
      slot_bytes_(
          base::round_up_to_cache_lines(job_.pieces.largest() * job_.reducer.contribution_bytes())),
      contributions_(job_.cache, static_cast<std::size_t>(job_.lanes),
                     static_cast<std::size_t>(job_.comm.size() - 1) * slot_bytes_),
      partials_(job_.cache, static_cast<std::size_t>(job_.lanes),
                job_.comm.size() == 1 ? 0 : job_.pieces.largest() * job_.reducer.partial_bytes()) {
  lanes_.reserve(static_cast<std::size_t>(job_.lanes));
  for (int lane = 0; lane < job_.lanes; ++lane) {
    lanes_.emplace_back(job_, lane, contributions_.take(), slot_bytes_, partials_.take());
  }
}

bool DirectReduction::advance() {
  if (job_.comm.size() == 1) {
    if (!alone_done_) job_.reducer.finish_alone(job_.output);
    return alone_done_ = true;
  }
  bool done = true;
  for (DirectLane& lane : lanes_) done = lane.advance() && done;
  return done;
}

}  // namespace hvdlite::collectives
