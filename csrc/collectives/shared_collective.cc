#include "collectives/shared_collective.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <typeinfo>
#include <utility>

#include "base/cache_line.h"
#include "base/error.h"
#include "base/thread.h"
#include "collectives/chunking.h"
#include "kernels/stream.h"

namespace hvdlite::collectives {

SharedCollective::SharedCollective(Comm comm, const Tuning& tuning)
    : comm_(std::move(comm)),
      turn_(comm_.shared()->take_turn()),
      spin_(tuning.spin),
      max_steps_(tuning.max_steps) {}

bool SharedCollective::advance() {
  if (finished_) return true;
  if (!channel().has_turn(turn_)) return false;
  int steps = 0;
  int polls = 0;
  while (!finished_ && steps < max_steps_) {
    if (step()) {
      ++steps;
      polls = 0;
    } else if (polls++ < spin_) {
      base::spin_pause();
    } else {
      break;
    }
  }
  if (steps > 0) comm_.note_progress();
  return finished_;
}

void SharedCollective::finish(std::uint64_t tiles) {
  channel().end_turn(tiles);
  finished_ = true;
}

void SharedCollective::ring_others() {
  for (int member = 0; member < size(); ++member) {
    if (member != me()) comm_.ring(channel().member(member));
  }
}

bool SharedCollective::publish_inline(const void* payload, std::size_t bytes) {
  HVD_CHECK(bytes <= kInlineBytes);
  const std::uint64_t number = channel().tiles();
  if (number > 0 && !channel().all_done(number - 1)) return false;
  transport::WindowFlags::Inline& line = inline_line(me());
  if (bytes > 0) std::memcpy(line.payload, payload, bytes);
  line.done.store(number, std::memory_order_relaxed);  // all earlier tiles: ordered by arrived
  line.arrived.store(number + 1, std::memory_order_release);
  ring_others();
  return true;
}

bool SharedCollective::all_inline_arrived() {
  for (int member = 0; member < size(); ++member) {
    const transport::WindowFlags::Inline& line = inline_line(member);
    if (line.arrived.load(std::memory_order_acquire) < channel().tiles() + 1) return false;
    channel().saw_done(member, line.done.load(std::memory_order_relaxed));
  }
  return true;
}

void SharedCollective::inline_done() {
  channel().flags(me()).done.store(channel().tiles() + 1, std::memory_order_release);
}

TilePipeline::TilePipeline(Comm comm, const Tuning& tuning, bool reduces, int filler)
    : SharedCollective(std::move(comm), tuning),
      reduces_(reduces),
      filler_(filler),
      stores_(tuning.tile_stores) {}

void TilePipeline::set_result_bytes(std::size_t bytes, const Tuning& tuning) {
  const auto members = static_cast<std::size_t>(size());
  streams_ = members > 1 && tuning.streaming_bytes > 0 &&
             bytes >= pieces_in(tuning.streaming_bytes, members);
}

void TilePipeline::set_tiles(std::size_t tiles, std::size_t bytes) {
  tiles_ = tiles;
  tile_bytes_ = bytes;
  if (size() == 1) return;
  class_ = tile_class_of(bytes);
  // If only one member fills, the first member's work on a tile says nothing about the work of the others.
  times_ = class_ && me() == 0 && filler_ == kEverybody && stores_ == TileStores::kAuto;
}

bool TilePipeline::puts_tile_past(std::size_t tile) const {
  if (stores_ == TileStores::kStreaming) return true;
  if (!class_ || stores_ == TileStores::kOrdinary) return false;
  return channel().streams_tile(*class_, channel().tiles_of_class(*class_) + tile);
}

// Measures the memory, so it reads the machine's clock. The engine's clock may show virtual time.
template <typename Step>
void TilePipeline::timed(std::size_t tile, Step step) {
  if (!times_) {
    step();
    return;
  }
  const base::Clock::time_point start = base::Clock::now();
  step();
  spent_[tile % 2] += base::Clock::now() - start;
}

void TilePipeline::tell_cost(std::size_t tile) {
  const auto spent = std::exchange(spent_[tile % 2], {});
  if (tile > 0 && tile + 1 == tiles_) return;  // the last tile may be smaller
  const double cost =
      std::chrono::duration<double, std::nano>(spent).count() / static_cast<double>(tile_bytes_);
  const std::uint64_t kind = typeid(*this).hash_code() ^ (2 * way() + (streams_ ? 1 : 0));
  channel().tile_handled(*class_, channel().tiles_of_class(*class_) + tile, cost, kind);
}

bool TilePipeline::step() {
  if (drained_ == tiles_) {
    if (class_) channel().add_tiles_of_class(*class_, tiles_);
    finish(first_ + tiles_);
    return true;
  }
  return try_fill() || try_reduce() || try_drain();
}

bool TilePipeline::try_fill() {
  if (filled_ == tiles_) return false;
  if (!fills()) {
    comm().ring(channel().member(filler_));
    filled_ = tiles_;
    return true;
  }
  const std::uint64_t tile = number(filled_);
  if (!may_fill(filled_)) return false;
  if (tile > 0 && !channel().all_done(tile - 1)) return false;
  puts_past_ = puts_tile_past(filled_);
  timed(filled_, [&] {
    fill(filled_);
    if (puts_past_) kernels::end_streaming();
  });
  channel().flags(me()).arrived.store(tile + 1, std::memory_order_release);
  ring_others();
  ++filled_;
  return true;
}

bool TilePipeline::try_reduce() {
  if (!reduces_ || reduced_ == filled_) return false;
  const std::uint64_t count = number(reduced_) + 1;
  if (!channel().all_arrived(count)) return false;
  puts_past_ = puts_tile_past(reduced_);
  timed(reduced_, [&] {
    reduce(reduced_);
    if (streams_ || puts_past_) kernels::end_streaming();
  });
  channel().flags(me()).reduced.store(count, std::memory_order_release);
  ring_others();
  ++reduced_;
  return true;
}

bool TilePipeline::try_drain() {
  const std::uint64_t count = number(drained_) + 1;
  if (reduces_) {
    if (drained_ == reduced_ || !channel().all_reduced(count)) return false;
  } else if (drained_ == filled_ ||
             !(filler_ == kEverybody ? channel().all_arrived(count)
                                     : channel().has_arrived(filler_, count))) {
    return false;
  }
  if (!may_drain(drained_)) return false;
  timed(drained_, [&] {
    drain(drained_);
    if (streams_) kernels::end_streaming();
  });
  if (times_) tell_cost(drained_);
  channel().flags(me()).done.store(count, std::memory_order_release);
  if (!fills()) comm().ring(channel().member(filler_));
  if (rings_done_) ring_others();
  ++drained_;
  return true;
}

std::size_t pipelined_tile(std::size_t bytes, std::size_t tile_bytes) {
  constexpr std::size_t kOverlap = 2;
  constexpr std::size_t kSmallest = 64 * 1024;
  return std::min(tile_bytes, std::max(bytes / kOverlap, kSmallest));
}

Lanes::Lanes(std::size_t bytes, int members, std::size_t element_bytes) {
  const std::size_t share = bytes / static_cast<std::size_t>(members);
  const std::size_t grain = share >= base::kCacheLine ? base::kCacheLine : element_bytes;
  bytes_ = share / grain * grain;
  HVD_CHECK(bytes_ > 0);
}

}  // namespace hvdlite::collectives
