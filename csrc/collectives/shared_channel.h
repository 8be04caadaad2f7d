// One process set's use of its region of the host window: the members on this host, the operation that has the turn, and the
// number of tiles used so far. Only the operation that has the turn uses the channel. Operations get the turn in the order in
// which the set agreed on them.
//
// A region passes to another process set when all members of its last set have destroyed their channels. A member does so when
// it has finished all operations of that set. The new set's tiles have larger numbers than all tiles before. So the new set
// reads a flag that an earlier set has left as "not yet".
// Thread: the holder of the progress token. Owns: its counts, and its use of the region, which the destructor ends. Blocks: no.
// Throws: Error(Internal) from result(), if another rank has told a place outside of its result memory.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "collectives/tile_stores.h"
#include "transport/host_window.h"

namespace hvdlite::collectives {

class SharedChannel {
 public:
  // members: the set's members on this host, as places in the Comm, ascending; local_ranks: their local ranks; index: this
  // rank's place in `members`; first_tile: an even number, larger than those of all tiles of earlier sets; departures: how many
  // ranks in all must have left the region before this set may use it.
  SharedChannel(transport::HostWindow& window, int region, std::vector<int> members,
                std::vector<int> local_ranks, int index, std::uint64_t first_tile = 0,
                std::uint64_t departures = 0)
      : window_(&window),
        region_(region),
        members_(std::move(members)),
        local_ranks_(std::move(local_ranks)),
        index_(index),
        arrived_(members_.size(), first_tile),
        reduced_(members_.size(), first_tile),
        done_(members_.size(), first_tile),
        departures_(departures),
        tiles_(first_tile) {}
  ~SharedChannel() { window_->head(region_).departures.fetch_add(1, std::memory_order_release); }
  SharedChannel(const SharedChannel&) = delete;
  SharedChannel& operator=(const SharedChannel&) = delete;

  // Have all earlier users of the region left it?
  bool is_free() {
    free_ =
        free_ || window_->head(region_).departures.load(std::memory_order_acquire) >= departures_;
    return free_;
  }

  int size() const { return static_cast<int>(members_.size()); }
  int index() const { return index_; }
  // The place in the Comm of a member of this channel.
  int member(int index) const { return members_[static_cast<std::size_t>(index)]; }
  std::size_t tile_bytes() const { return window_->tile_bytes(); }

  transport::WindowFlags& flags(int index) const {
    return window_->flags(region_, local_ranks_[static_cast<std::size_t>(index)]);
  }
  // The memory for a member's prepared input of this number (prepared.h).
  std::size_t prepared_bytes() const { return window_->prepared_bytes(); }
  std::byte* prepared(int index, std::uint64_t number) const {
    return window_->prepared(region_, local_ranks_[static_cast<std::size_t>(index)],
                             static_cast<int>(number & 1));
  }
  // The number of prepared operations of which this rank has made its result.
  std::uint64_t prepared_count() const { return prepared_count_; }
  void count_prepared() { ++prepared_count_; }
  std::byte* tile(int index, std::uint64_t number) const {
    return window_->tile(region_, local_ranks_[static_cast<std::size_t>(index)],
                         static_cast<int>(number & 1));
  }

  // place_of_result: the place of this rank's result, if other ranks can store into it; otherwise 0. tell_result: tells the
  // place to the other ranks, for the operation whose first tile is `tile`; call it before this rank raises `arrived` for this
  // tile. result: a member's result, or null if its place is 0; call it after that member has raised `arrived` for the tile
  // (collectives/allreduce_shm.cc).
  std::uint64_t place_of_result(const void* data, std::size_t bytes) const {
    const auto& results = window_->results();
    const auto offset = results ? results->offset_of(data, bytes) : std::nullopt;
    return offset ? *offset + 1 : 0;
  }
  void tell_result(std::uint64_t tile, std::uint64_t place) const {
    flags(index_).result[tile & 1].store(place, std::memory_order_relaxed);
  }
  std::byte* result(int index, std::uint64_t tile, std::size_t bytes) const {
    const std::uint64_t place = flags(index).result[tile & 1].load(std::memory_order_relaxed);
    if (place == 0) return nullptr;
    return window_->results()->at(local_ranks_[static_cast<std::size_t>(index)], place - 1, bytes);
  }

  // An operation takes a turn when it is constructed. All members construct the operations in the same order.
  std::uint64_t take_turn() { return next_turn_++; }
  bool has_turn(std::uint64_t turn) { return turn == turn_ && is_free(); }
  // tiles: how many the operation has used.
  void end_turn(std::uint64_t tiles) {
    tiles_ += tiles;
    ++turn_;
  }
  bool all_turns_ended() const { return turn_ == next_turn_; }

  // The number of the first tile of the operation that has the turn.
  std::uint64_t tiles() const { return tiles_; }

  // For tiles of one size class, which are numbered separately (tile_stores.h). tiles_of_class: the number of the next one.
  // streams_tile: is this tile written past the caches? tile_handled: the first member tells how long it took to handle a tile.
  std::uint64_t tiles_of_class(std::size_t tile_class) const { return class_tiles_[tile_class]; }
  void add_tiles_of_class(std::size_t tile_class, std::uint64_t count) {
    class_tiles_[tile_class] += count;
  }
  bool streams_tile(std::size_t tile_class, std::uint64_t number) const {
    return StoreTrials::streams(stores(tile_class).load(std::memory_order_relaxed), number);
  }
  void tile_handled(std::size_t tile_class, std::uint64_t number, double cost, std::uint64_t kind) {
    std::atomic<std::uint64_t>& word = stores(tile_class);
    const std::uint64_t said = trials_[tile_class].handled(number, cost, kind);
    if (word.load(std::memory_order_relaxed) != said) word.store(said, std::memory_order_relaxed);
  }

  // Has the flag of all members (or of one) reached `count` (see WindowFlags)? The highest counts seen are kept. So a flag's
  // cache line, which its member may have changed again, is fetched only if the kept count is too small.
  bool all_arrived(std::uint64_t count) {
    return all_reached(arrived_, count, &transport::WindowFlags::arrived);
  }
  bool all_reduced(std::uint64_t count) {
    return all_reached(reduced_, count, &transport::WindowFlags::reduced);
  }
  bool all_done(std::uint64_t count) {
    return all_reached(done_, count, &transport::WindowFlags::done);
  }
  bool has_arrived(int index, std::uint64_t count) {
    return reached(arrived_, index, count, &transport::WindowFlags::arrived);
  }
  // Records a count of `done` that came with an inline payload.
  void saw_done(int index, std::uint64_t count) {
    std::uint64_t& known = done_[static_cast<std::size_t>(index)];
    if (count > known) known = count;
  }

 private:
  using Counts = std::vector<std::uint64_t>;
  using Flag = std::atomic<std::uint64_t> transport::WindowFlags::*;

  bool reached(Counts& seen, int member, std::uint64_t count, Flag flag) const {
    std::uint64_t& known = seen[static_cast<std::size_t>(member)];
    if (known < count) {
      known = std::max(known, (flags(member).*flag).load(std::memory_order_acquire));
    }
    return known >= count;
  }
  bool all_reached(Counts& seen, std::uint64_t count, Flag flag) const {
    for (int member = 0; member < size(); ++member) {
      if (!reached(seen, member, count, flag)) return false;
    }
    return true;
  }

  std::atomic<std::uint64_t>& stores(std::size_t tile_class) const {
    return window_->head(region_).tile_stores[tile_class];
  }

  transport::HostWindow* window_;
  int region_;
  std::vector<int> members_;
  std::vector<int> local_ranks_;
  int index_;
  Counts arrived_;
  Counts reduced_;
  Counts done_;
  std::uint64_t departures_;
  bool free_ = false;
  std::uint64_t next_turn_ = 0;
  std::uint64_t turn_ = 0;
  std::uint64_t tiles_;
  std::uint64_t prepared_count_ = 0;
  std::array<std::uint64_t, kTileClasses> class_tiles_ = {};
  std::array<StoreTrials, kTileClasses> trials_;
};

}  // namespace hvdlite::collectives
