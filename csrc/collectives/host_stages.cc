#include "collectives/host_stages.h"

#include <algorithm>
#include <utility>

#include "kernels/stream.h"

namespace hvdlite::collectives {

namespace {

// The most elements of a piece. A slice has a few pieces, so that filling and draining overlap, and no piece is larger than a
// lane.
std::size_t piece_limit(const SlicePlan& plan, std::size_t lane_bytes, std::size_t element_bytes) {
  const std::size_t limit =
      pipelined_tile(plan.largest() * element_bytes, lane_bytes) / element_bytes;
  return limit > plan.cut.grain ? limit / plan.cut.grain * plan.cut.grain : limit;
}

}  // namespace

HostStage::HostStage(Comm comm, const Tuning& tuning, HostJob& job, std::size_t element_bytes,
                     std::size_t result_bytes)
    : TilePipeline(std::move(comm), tuning, /*reduces=*/false),
      job_(job),
      lanes_(channel().tile_bytes(), job.plan.owners, element_bytes),
      limit_(piece_limit(job.plan, lanes_.bytes(), element_bytes)),
      tiles_per_round_(pieces_in(job.plan.largest(), limit_)),
      cursors_(static_cast<std::size_t>(job.plan.owners), PartCursor(job.parts, result_bytes)) {
  hold_back();
  set_tiles(job.plan.cut.rounds * tiles_per_round_,
            static_cast<std::size_t>(job.plan.owners) * limit_ * element_bytes);
}

Range HostStage::piece(std::size_t tile, int owner) const {
  return piece_of(job_.plan.slice(round_of(tile), owner), tile % tiles_per_round_, limit_);
}

HostReduce::HostReduce(Comm comm, const Tuning& tuning, const TileReducer& reducer, HostJob& job)
    : HostStage(std::move(comm), tuning, job, reducer.contribution_bytes(), reducer.result_bytes()),
      reducer_(reducer),
      inputs_(static_cast<std::size_t>(size())) {}

void HostReduce::fill(std::size_t tile) {
  for (int owner = 0; owner < job_.plan.owners; ++owner) {
    if (owner == me()) continue;
    std::byte* const place = lane(me(), tile, owner);
    cursor(owner).walk(piece(tile, owner), [&](const void* input, void*, std::size_t offset,
                                               std::size_t n) {
      reducer_.contribute(place + offset * reducer_.contribution_bytes(), input, n, puts_past());
    });
  }
}

bool HostReduce::may_drain(std::size_t tile) const {
  return !owns() || round_of(tile) < job_.done.published + kSlots;
}

void HostReduce::drain(std::size_t tile) {
  if (owns()) {
    const Range range = piece(tile, me());
    std::byte* const partial = job_.partials[round_of(tile) % kSlots] +
                               place_in_slice(tile, range) * reducer_.partial_bytes();
    cursor(me()).walk(range, [&](const void* input, void*, std::size_t offset, std::size_t n) {
      for (int member = 0; member < size(); ++member) {
        inputs_[static_cast<std::size_t>(member)] =
            lane(member, tile, me()) + offset * reducer_.contribution_bytes();
      }
      if (input == nullptr || reducer_.scaled()) {
        std::byte* const own = lane(me(), tile, me()) + offset * reducer_.contribution_bytes();
        reducer_.contribute(own, input, n);
      } else {
        inputs_[static_cast<std::size_t>(me())] = input;
      }
      reducer_.fold_partial(partial + offset * reducer_.partial_bytes(), inputs_.data(), size(), n);
    });
  }
  if (ends_round(tile)) ++job_.done.reduced;
}

HostPublish::HostPublish(Comm comm, const Tuning& tuning, std::size_t result_bytes, HostJob& job)
    : HostStage(std::move(comm), tuning, job, result_bytes, result_bytes),
      result_bytes_(result_bytes) {}

bool HostPublish::may_fill(std::size_t tile) const {
  return !owns() || round_of(tile) < job_.done.finished;
}

void HostPublish::fill(std::size_t tile) {
  if (!owns() || size() == 1) return;
  const Range range = piece(tile, me());
  if (range.count > 0) put(lane(me(), tile, me()), own(tile, range), range.count * result_bytes_);
}

void HostPublish::drain(std::size_t tile) {
  for (int owner = 0; owner < job_.plan.owners; ++owner) {
    const Range range = piece(tile, owner);
    if (range.count == 0) continue;
    const std::byte* const from = owner == me() ? own(tile, range) : lane(owner, tile, owner);
    cursor(owner).walk(range, [&](const void*, void* output, std::size_t offset, std::size_t n) {
      if (output == nullptr) return;
      kernels::plain_copy(output, from + offset * result_bytes_, n * result_bytes_);
    });
  }
  if (ends_round(tile)) ++job_.done.published;
}

const std::byte* HostPublish::own(std::size_t tile, const Range& range) const {
  return job_.results[round_of(tile) % kSlots] + place_in_slice(tile, range) * result_bytes_;
}

}  // namespace hvdlite::collectives
