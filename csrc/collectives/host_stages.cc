#include "collectives/host_stages.h"

#include <algorithm>
#include <utility>

#include "kernels/stream.h"

namespace hvdlite::collectives {

namespace {

// Elements of a piece: a few pieces to a slice, so that filling and draining overlap, none larger than a lane.
std::size_t piece_limit(const SlicePlan& plan, std::size_t lane_bytes, std::size_t element_bytes) {
  const std::size_t limit =
      pipelined_tile(plan.largest() * element_bytes, lane_bytes) / element_bytes;
  return limit > plan.grain ? limit / plan.grain * plan.grain : limit;
}

}  // namespace

HostReduce::HostReduce(Comm comm, const Tuning& tuning, const TileReducer& reducer, HostJob& job)
    : TilePipeline(std::move(comm), tuning, HeldBack{}),
      reducer_(reducer),
      job_(job),
      lanes_(channel().tile_bytes(), job.plan.owners, reducer.contribution_bytes()),
      limit_(piece_limit(job.plan, lanes_.bytes(), reducer.contribution_bytes())),
      tiles_per_round_(pieces_in(job.plan.largest(), limit_)),
      inputs_(static_cast<std::size_t>(size())) {
  for (int owner = 0; owner < job.plan.owners; ++owner) {
    cursors_.emplace_back(job_.parts, reducer_.result_bytes());
  }
  set_tiles(job.plan.rounds * tiles_per_round_,
            static_cast<std::size_t>(job.plan.owners) * limit_ * reducer_.contribution_bytes());
}

void HostReduce::fill(std::size_t tile) {
  for (int owner = 0; owner < job_.plan.owners; ++owner) {
    if (owner == me()) continue;
    std::byte* const place = lane(me(), tile, owner);
    cursors_[static_cast<std::size_t>(owner)].walk(
        piece(tile, owner), [&](const void* input, void*, std::size_t offset, std::size_t n) {
          reducer_.contribute(place + offset * reducer_.contribution_bytes(), input, n,
                              puts_past());
        });
  }
}

bool HostReduce::may_drain(std::size_t tile) const {
  return me() >= job_.plan.owners || tile / tiles_per_round_ < job_.done.published + kSlots;
}

void HostReduce::drain(std::size_t tile) {
  const std::size_t round = tile / tiles_per_round_;
  if (me() < job_.plan.owners) {
    const Range range = piece(tile, me());
    std::byte* const partial =
        job_.partials[round % kSlots] +
        (range.offset - job_.plan.slice(round, me()).offset) * reducer_.partial_bytes();
    cursors_[static_cast<std::size_t>(me())].walk(range, [&](const void* input, void*,
                                                             std::size_t offset, std::size_t n) {
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
  if ((tile + 1) % tiles_per_round_ == 0) ++job_.done.reduced;
}

Range HostReduce::piece(std::size_t tile, int owner) const {
  return piece_of(job_.plan.slice(tile / tiles_per_round_, owner), tile % tiles_per_round_, limit_);
}

HostPublish::HostPublish(Comm comm, const Tuning& tuning, std::size_t result_bytes, HostJob& job)
    : TilePipeline(std::move(comm), tuning, HeldBack{}),
      job_(job),
      result_bytes_(result_bytes),
      lanes_(channel().tile_bytes(), job.plan.owners, result_bytes),
      limit_(piece_limit(job.plan, lanes_.bytes(), result_bytes)),
      tiles_per_round_(pieces_in(job.plan.largest(), limit_)) {
  for (int owner = 0; owner < job.plan.owners; ++owner) {
    cursors_.emplace_back(job_.parts, result_bytes_);
  }
  set_tiles(job.plan.rounds * tiles_per_round_,
            static_cast<std::size_t>(job.plan.owners) * limit_ * result_bytes_);
}

bool HostPublish::may_fill(std::size_t tile) const {
  return me() >= job_.plan.owners || tile / tiles_per_round_ < job_.done.finished;
}

void HostPublish::fill(std::size_t tile) {
  if (me() >= job_.plan.owners || size() == 1) return;
  const Range range = piece(tile, me());
  if (range.count == 0) return;
  put(buffer(me(), tile) + lanes_.offset(me()), own(tile, range), range.count * result_bytes_);
}

void HostPublish::drain(std::size_t tile) {
  for (int owner = 0; owner < job_.plan.owners; ++owner) {
    const Range range = piece(tile, owner);
    if (range.count == 0) continue;
    const std::byte* const from =
        owner == me() ? own(tile, range) : buffer(owner, tile) + lanes_.offset(owner);
    cursors_[static_cast<std::size_t>(owner)].walk(
        range, [&](const void*, void* output, std::size_t offset, std::size_t n) {
          if (output == nullptr) return;
          kernels::plain_copy(output, from + offset * result_bytes_, n * result_bytes_);
        });
  }
  if ((tile + 1) % tiles_per_round_ == 0) ++job_.done.published;
}

Range HostPublish::piece(std::size_t tile, int owner) const {
  return piece_of(job_.plan.slice(tile / tiles_per_round_, owner), tile % tiles_per_round_, limit_);
}

const std::byte* HostPublish::own(std::size_t tile, const Range& range) const {
  const std::size_t round = tile / tiles_per_round_;
  return job_.results[round % kSlots] +
         (range.offset - job_.plan.slice(round, me()).offset) * result_bytes_;
}

}  // namespace hvdlite::collectives
