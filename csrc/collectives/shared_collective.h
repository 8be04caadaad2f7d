// What all collectives over the host window share: the turn, tiles passing through the members' buffers, and tiles so small
// that they fit into a flag's cache line.
//
// Tiles are numbered for ever. Every member of the channel has two buffers, and tile t passes through buffer t & 1 of each
// (below, t counts from the channel's birth). Three flags of each member count tiles. For one tile:
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
// A member makes every step that is allowed: it fills tile t+1 before it waits for the others' tile t, so that a member that is a
// little late does not delay the others.
//
// Two buffers and these flags suffice. Buffer t & 1 of a member is written by its owner alone: by its fill of t and its
// reduce of t. It is read by others between their seeing arrived >= t+1 and their storing done >= t+1. So what has to
// be shown is that no owner writes while others read.
// - The fill of t: all have done >= t-1, so no member reads tile t-2 any more, which had this buffer; and no member reads tile t
//   before arrived >= t+1 is stored, which is after the fill.
// - The reduce of t writes the owner's slice only, which others read in their drain alone, after reduced >= t+1.
// A tile's number stands for its contents: an operation has the channel for itself from its first tile to its last, and all
// members count its tiles alike. Flags only grow, each has one writer, and every store is a release and every load an
// acquire; so a member that sees a flag also sees all that was written before it, and a flag that an operation does
// not use is simply raised later.
//
// No deadlock: fill(t) waits for drain(t-2), reduce(t) for fill(t), drain(t) for reduce(t), of all members. Among all the
// steps not yet done, one of the least t, and among these the earliest kind, waits for nothing; the member whose step it is
// does it, since a member does every step that it may do. The next operation's tiles are later ones, and turns are taken
// in the same order everywhere, so the argument holds across operations. A pipeline that holds its fills or drains back
// (may_fill, may_drain) has to extend the argument to what it waits for.
//
// Bells: a member rings all others after it has stored arrived or reduced, but not after done. Another member may wait for
// done >= t-1 to fill tile t. The last member to store done then fills its own tile t, and so rings. (If a member fills nothing,
// it rings the one that does: see the constructor. If fills may be held back, members ring after done as well.)
//
// Thread: the holder of the progress token. Owns: a turn of the channel. Blocks: no. Throws: what SharedChannel does.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/thread.h"
#include "collectives/collective.h"
#include "kernels/stream.h"

namespace hvdlite::collectives {

class SharedCollective : public Collective {
 public:
  bool advance() final;

 protected:
  // Takes the next turn of comm's channel. Steps that may throw must come before it.
  SharedCollective(Comm comm, const Tuning& tuning);

  // With the turn: does one thing that can be done without waiting. False if there is none.
  virtual bool step() = 0;
  // The last step. count: the number of tiles that were used.
  void finish(std::uint64_t tiles);

  Comm& comm() { return comm_; }
  SharedChannel& channel() const { return *comm_.shared(); }
  int size() const { return channel().size(); }
  int me() const { return channel().index(); }
  void ring_others();

 private:
  Comm comm_;
  std::uint64_t turn_;
  int spin_;
  int max_steps_;
  bool finished_ = false;
};

// A tile in the same cache line as the flag that announces it. Here the line's two flags stand for arrived and done above:
// a member stores its payload, then how far it is done, then arrived; it overwrites the line two tiles later.
class InlineTile {
 public:
  static constexpr std::size_t kBytes = transport::WindowFlags::kInlineBytes;
  explicit InlineTile(std::uint64_t number) : number_(number) {}

  // False if the line is not free yet. Who publishes rings the others.
  bool publish(SharedChannel& channel, const void* payload, std::size_t bytes) const;
  bool all_arrived(SharedChannel& channel) const;
  // After all_arrived(), until done().
  const std::byte* payload(const SharedChannel& channel, int member) const;
  void done(SharedChannel& channel) const;

 private:
  std::uint64_t number_;
};

// Tiles through the buffers, as drawn above.
class TilePipeline : public SharedCollective {
 protected:
  static constexpr int kEverybody = -1;

  // filler: the only member that fills (all others' fill is nothing, and they wait for it alone). They ring it when they
  // have their turn and whenever they are done with a tile, since nothing else would wake it.
  TilePipeline(Comm comm, const Tuning& tuning, bool reduces, int filler = kEverybody);
  // Held back: fill and drain of a tile also wait for may_fill and may_drain.
  struct HeldBack {};
  TilePipeline(Comm comm, const Tuning& tuning, HeldBack);

  // Before the first step. bytes: of one member in each tile, but the last.
  void set_tiles(std::size_t tiles, std::size_t bytes);
  // Bytes of the result on each member, none of which it has just read: if they are many, deliver() writes past the caches.
  // Before the first step.
  void set_result_bytes(std::size_t bytes, const Tuning& tuning);
  bool streams() const { return streams_; }
  // Copies a piece of it, in reduce or drain.
  void deliver(void* to, const void* from, std::size_t bytes) const {
    kernels::copy(to, from, bytes, streams_);
  }
  // In fill and reduce: does this member write its buffer past the caches (tile_stores.h)?
  bool puts_past() const { return puts_past_; }
  void put(void* to, const void* from, std::size_t bytes) const {
    kernels::copy(to, from, bytes, puts_past_);
  }
  // Tiles of this channel that this operation used before its pipeline.
  void skip_tiles(std::uint64_t tiles) { first_ = tiles; }
  bool step() override;

  // Tile numbers count from the operation's first.
  virtual void fill(std::size_t tile) = 0;
  virtual void reduce(std::size_t) {}
  virtual void drain(std::size_t tile) = 0;
  virtual bool may_fill(std::size_t) const { return true; }
  virtual bool may_drain(std::size_t) const { return true; }
  // Of the ways in which an operation may handle its tiles: those of different ways are not compared. At most 2^62.
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
  // Does one of a tile's three steps; the last tells how long they took.
  template <typename Step>
  void timed(std::size_t tile, Step step);
  void tell_cost(std::size_t tile);

  bool reduces_;
  int filler_;
  bool rings_done_ = false;
  bool streams_ = false;

  TileStores stores_;
  std::optional<std::size_t> class_;  // of the tiles (tile_stores.h)
  bool puts_past_ = false;            // the tile in hand
  bool times_ = false;
  std::size_t tile_bytes_ = 0;
  // So far, on the tiles under way: two at most.
  std::array<base::Clock::duration, 2> spent_ = {};

  std::uint64_t first_ = 0;
  std::size_t tiles_ = 0;
  std::size_t filled_ = 0;
  std::size_t reduced_ = 0;
  std::size_t drained_ = 0;
};

// Bytes of a tile for an operation of this many bytes for each member: a few tiles, so that they overlap, but none so small that
// waiting outweighs it.
std::size_t pipelined_tile(std::size_t bytes, std::size_t tile_bytes);

// A buffer cut into one lane for each member, each starting on a cache line where there is room for that.
class Lanes {
 public:
  Lanes(std::size_t bytes, int members, std::size_t element_bytes);
  std::size_t bytes() const { return bytes_; }  // of one lane, whole elements
  std::size_t offset(int member) const { return static_cast<std::size_t>(member) * bytes_; }

 private:
  std::size_t bytes_;
};

}  // namespace hvdlite::collectives
