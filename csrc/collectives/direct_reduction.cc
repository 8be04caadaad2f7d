#include "collectives/direct_reduction.h"

#include <algorithm>

#include "base/cache_line.h"

namespace hvdlite::collectives {

namespace {

// Each lane stages a piece from every other rank. So with more ranks pieces are smaller, down to a size at which a message
// takes hardly more time than its latency. From 512 ranks on staging takes more than kStagingBytes.
constexpr std::size_t kStagingBytes = std::size_t{8} << 20;
constexpr std::size_t kSmallestPieceBytes = std::size_t{4} << 10;

std::size_t slot_bytes_of(const ReductionJob& job) {
  return base::round_up_to_cache_lines(job.pieces.largest() * job.reducer.contribution_bytes());
}

}  // namespace

std::size_t direct_piece_bytes(const Tuning& tuning, int ranks) {
  const std::size_t share = kStagingBytes / (kMostLanes * static_cast<std::size_t>(ranks));
  return std::min(tuning.segment_bytes, std::max(share, kSmallestPieceBytes));
}

std::size_t DirectLane::piece_limit(const Reduction& reduction, int ranks, const Tuning& tuning) {
  return direct_piece_bytes(tuning, ranks) / base::size_of(reduction.dtype);
}

std::size_t DirectLane::staging_bytes(const ReductionJob& job) {
  return static_cast<std::size_t>(job.comm.size() - 1) * slot_bytes_of(job) +
         job.pieces.largest() * job.reducer.partial_bytes();
}

DirectLane::DirectLane(ReductionJob& job, int channel, std::byte* memory)
    : job_(&job),
      contributions_(memory),
      slot_bytes_(slot_bytes_of(job)),
      partial_(memory + static_cast<std::size_t>(job.comm.size() - 1) * slot_bytes_),
      round_(static_cast<std::size_t>(channel)),
      scatter_(job.comm, channel),
      gather_(job.comm, channel) {}

bool DirectLane::advance() {
  for (; round_ < job_->pieces.rounds(); round_ += job_->lanes()) {
    const bool scattered = scatter();
    add_in_rank_order();
    if (job_->gather && !gather()) return false;
    if (!scattered || added_ < job_->comm.size()) return false;
    added_ = 0;
    scatter_.reset();
    gather_.reset();
  }
  return true;
}

// Sends contributions to their owners. Returns true when all sends and receives are complete.
bool DirectLane::scatter() {
  const std::size_t bytes = job_->reducer.contribution_bytes();
  const Range mine = job_->pieces.piece(round_, job_->comm.rank());
  return scatter_.advance([&](int rank) { return std::span(slot(rank), mine.count * bytes); },
                          [&](int owner) {
                            const Range piece = job_->pieces.piece(round_, owner);
                            return std::span(job_->reducer.own(piece.offset), piece.count * bytes);
                          });
}

// Adds contributions that have arrived, but never rank q+1's before rank q's.
void DirectLane::add_in_rank_order() {
  const int size = job_->comm.size();
  const ElementReducer& reducer = job_->reducer;
  const Range piece = job_->pieces.piece(round_, job_->comm.rank());
  for (; added_ < size && scatter_.has_arrived(added_); ++added_) {
    if (added_ == 0 || piece.count == 0) continue;
    const bool last = added_ == size - 1;
    const std::byte* const next = contribution(added_, piece);
    if (added_ == 1 && last) {
      reducer.begin_and_finish(job_->place(piece), partial_, contribution(0, piece), next,
                               piece.count);
    } else if (added_ == 1) {
      reducer.begin(partial_, contribution(0, piece), next, piece.count);
    } else if (last) {
      reducer.add_and_finish(job_->place(piece), partial_, next, piece.count);
    } else {
      reducer.add(partial_, next, piece.count);
    }
  }
}

// Sends finished pieces to all ranks. Returns true when all sends and receives are complete.
bool DirectLane::gather() {
  // In place, a finished piece overwrites this rank's contribution to it, so the contribution must have been sent. Between two
  // ranks the scatter message also has to be posted before the gather message, on both sides.
  if (!scatter_.may_be_followed()) return false;
  const auto result_of = [&](int owner) {
    const Range piece = job_->pieces.piece(round_, owner);
    return std::span(job_->place(piece), piece.count * job_->reducer.result_bytes());
  };
  return gather_.advance(
      result_of, [&](int) { return result_of(job_->comm.rank()); },
      /*may_send=*/added_ == job_->comm.size());
}

const std::byte* DirectLane::contribution(int rank, const Range& piece) const {
  return rank == job_->comm.rank() ? job_->reducer.own(piece.offset) : slot(rank);
}

}  // namespace hvdlite::collectives
