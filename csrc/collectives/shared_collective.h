// The common part of all collectives over the host window: the turn, tiles in the members' buffers, and tiles so small that
// they fit into a flag's cache line.
//
// The tiles of a channel are numbered, and no number is used again. Every member of the channel has two buffers, and tile t
// uses buffer t & 1 of each member. Three flags of each member count tiles. The steps of tile t:
//
//            member 0                        member 1
//   fill     copies into its buffer          copies into its buffer          waits until all have done >= t-1
//            arrived = t+1  ---------------> arrived = t+1
//   reduce   reads all buffers, writes its   the same with its slice         waits until all have arrived >= t+1
//   (some)   slice of its own buffer
//            reduced = t+1  ---------------> reduced = t+1
//   drain    reads all buffers, writes its   the same                        waits until all have reduced (without a
//            output; done = t+1              done = t+1                      reduce step: arrived) >= t+1
//
// A member makes every step that is allowed: it fills tile t+1 before it waits for the others' tile t, so that a member that is
// a little late does not delay the others.
//
// Two buffers and these flags are enough. A buffer is written only by its owner: in the fill of t and in the reduce of t (and
// in the drain of t, but only where no other member reads). Another member reads the buffer after it has seen arrived >= t+1
// and before it stores done >= t+1. It has to be shown that no owner writes while others read.
// - The fill of t: all have done >= t-1, so no member still reads tile t-2, which used this buffer. And no member reads tile t
//   before arrived >= t+1 is stored, which is after the fill.
// - The reduce of t writes only the owner's slice. Others read this slice only in their drain, after reduced >= t+1.
//
// A tile's number identifies its contents: an operation has the channel for itself from its first tile to its last, and all
// members count its tiles in the same way. Flags only grow, and each has one writer. Every store is a release and every load an
// acquire, so a member that sees a flag also sees all data that were written before it. A flag that an operation does not use
// keeps its count; a later operation raises it.
//
// No deadlock: fill(t) waits for drain(t-2), reduce(t) for fill(t), and drain(t) for reduce(t), of all members. Take the steps
// that are not yet done. Of those with the least t, a step of the earliest kind (fill, reduce, drain) waits for no other step.
// Its member does this step, because a member does every step that it may do. The next operation's tiles have larger numbers,
// and all members take turns in the same order, so the argument holds across operations. A pipeline that holds its fills or
// drains back (may_fill, may_drain) has to extend the argument to its own conditions.
//
// Bells: a member rings all others (wakes them if they sleep) after it has stored arrived or reduced, but not after done.
// Another member may wait for done >= t-1 of all to fill tile t. It is rung all the same: the last member that stores done >=
// t-1 then fills its own tile t, and rings after that. (If only one member fills, the others ring it: see the constructor. If
// fills may be held back, members ring after done as well.)
//
// Thread: the holder of the progress token. Owns: a turn of the channel. Blocks: no. Throws: what SharedChannel does.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/thread.h"
#include "collectives/collective.h"
#include "kernels/stream.h"

namespace hvdlite::collectives {

class SharedCollective : public Collective {
 public:
  bool advance() final;

 protected:
  // Takes the next turn of comm's channel. Do whatever may throw before it, because a turn that is taken must end.
  SharedCollective(Comm comm, const Tuning& tuning);

  // Called while the operation has the turn. Does one step that can be done without waiting; returns false if there is none.
  virtual bool step() = 0;
  // Ends the operation and its turn; the last step calls it. tiles: how many the operation has used.
  void finish(std::uint64_t tiles);

  Comm& comm() { return comm_; }
  SharedChannel& channel() const { return *comm_.shared(); }
  int size() const { return channel().size(); }
  int me() const { return channel().index(); }
  void ring_others();

  // Inline payload: the operation's first tile lies in the same cache line as the flag that announces it. This flag takes the
  // place of arrived above. The line also has the member's count of done at that time, so that the others need not fetch
  // another line to see this count. A member overwrites the line two tiles later at the earliest.
  static constexpr std::size_t kInlineBytes = transport::WindowFlags::kInlineBytes;
  // Writes the payload and its flag, and rings the other members. Returns false if the line is not free yet.
  bool publish_inline(const void* payload, std::size_t bytes);
  bool all_inline_arrived();
  // After all_inline_arrived(), until inline_done().
  const std::byte* inline_payload(int member) const { return inline_line(member).payload; }
  void inline_done();

 private:
  transport::WindowFlags::Inline& inline_line(int member) const {
    return channel().flags(member).small[channel().tiles() & 1];
  }

  Comm comm_;
  std::uint64_t turn_;
  int spin_;
  int max_steps_;
  bool finished_ = false;
};

// Passes tiles through the buffers, as drawn above.
class TilePipeline : public SharedCollective {
 protected:
  static constexpr int kEverybody = -1;

  // filler: the only member that fills. The others wait only for it. They ring it when they have their turn and whenever they
  // are done with a tile, since nothing else would wake it.
  TilePipeline(Comm comm, const Tuning& tuning, bool reduces, int filler = kEverybody);
  // For pipelines whose may_fill or may_drain may return false: members ring after done as well.
  void hold_back() { rings_done_ = true; }

  // Call it before the first step. bytes: how many bytes of a member's buffer the largest tile uses.
  void set_tiles(std::size_t tiles, std::size_t bytes);
  // Call it before the first step, if the memory of the result was not read just before. bytes: of the result on each member.
  // If the results of all members together have at least Tuning::streaming_bytes, deliver() writes past the caches.
  void set_result_bytes(std::size_t bytes, const Tuning& tuning);
  bool streams() const { return streams_; }
  // In reduce or drain: copies a piece of the result.
  void deliver(void* to, const void* from, std::size_t bytes) const {
    kernels::copy(to, from, bytes, streams_);
  }
  // In fill and reduce: does this member write its buffer past the caches (tile_stores.h)?
  bool puts_past() const { return puts_past_; }
  void put(void* to, const void* from, std::size_t bytes) const {
    kernels::copy(to, from, bytes, puts_past_);
  }
  // tiles: how many this operation uses before the pipeline's first tile.
  void skip_tiles(std::uint64_t tiles) { first_ = tiles; }
  bool step() override;

  // tile: 0 is the pipeline's first tile.
  virtual void fill(std::size_t tile) = 0;
  virtual void reduce(std::size_t) {}
  virtual void drain(std::size_t tile) = 0;
  virtual bool may_fill(std::size_t) const { return true; }
  virtual bool may_drain(std::size_t) const { return true; }
  // A number for the way in which this operation handles its tiles, at most 2^62. Times of tiles are compared only if they were
  // handled in the same way.
  virtual std::uint64_t way() const { return 0; }

  std::uint64_t first_tile() const { return number(0); }
  std::byte* buffer(int member, std::size_t tile) const {
    return channel().tile(member, number(tile));
  }

 private:
  std::uint64_t number(std::size_t tile) const { return channel().tiles() + first_ + tile; }
  bool fills() const { return filler_ == kEverybody || filler_ == me(); }
  bool try_fill();
  bool try_reduce();
  bool try_drain();
  bool puts_tile_past(std::size_t tile) const;
  // Does one of a tile's three steps. If this member measures times, adds the time of the step to the tile's.
  template <typename Step>
  void timed(std::size_t tile, Step step);
  void tell_cost(std::size_t tile);

  bool reduces_;
  int filler_;
  bool rings_done_ = false;
  bool streams_ = false;

  TileStores stores_;
  std::optional<std::size_t> class_;  // of the tiles (tile_stores.h)
  bool puts_past_ = false;            // of the current tile
  bool times_ = false;
  std::size_t tile_bytes_ = 0;
  // The time spent so far on the tiles under way, of which there are at most two.
  std::array<base::Clock::duration, 2> spent_ = {};

  std::uint64_t first_ = 0;
  std::size_t tiles_ = 0;
  std::size_t filled_ = 0;
  std::size_t reduced_ = 0;
  std::size_t drained_ = 0;
};

// The bytes of a tile in an operation of `bytes` bytes for each member; tile_bytes: the most. The operation gets a few tiles,
// so that their steps overlap, but no tile is so small that waiting takes longer than its steps.
std::size_t pipelined_tile(std::size_t bytes, std::size_t tile_bytes);

// A buffer that is cut into lanes of equal size, one for each member. If a lane is at least as long as a cache line, each lane
// begins on a cache line.
class Lanes {
 public:
  Lanes(std::size_t bytes, int members, std::size_t element_bytes);
  std::size_t bytes() const { return bytes_; }  // of one lane, whole elements
  std::size_t offset(int member) const { return static_cast<std::size_t>(member) * bytes_; }

 private:
  std::size_t bytes_;
};

}  // namespace hvdlite::collectives
