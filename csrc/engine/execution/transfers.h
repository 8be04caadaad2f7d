// Payloads on their way between this rank and another, that both have agreed to move: in a host that shares a window through it
// (transport/payload_stream.h), else as messages of the transport.
// Thread: the holder of the progress token. Owns: their entries. Blocks: never, but for copying. Throws: what Transport throws, and
// Error(Internal) for what no correct rank sends.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "engine/intake/shared_state.h"
#include "engine/model/entry.h"
#include "transport/payload_stream.h"
#include "transport/transport.h"

namespace hvdlite::engine {

class Transfers {
 public:
  Transfers(transport::Transport& transport, SharedState& shared)
      : transport_(transport), shared_(shared) {}

  // Two ranks start the payloads between them in one order.
  void send(Entry entry, int to);
  void receive(Entry entry, int from);
  // Moves them on, and ends those that are over; true if anything moved.
  bool advance();
  bool idle() const { return moving_.empty() && streamed_ == 0; }
  bool idle(SetId set) const;
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Moving& each : moving_) visit(each.entry);
    for (const auto& [peer, streams] : streams_) {
      std::ranges::for_each(streams.sends, visit);
      std::ranges::for_each(streams.receives, visit);
    }
  }
  // Fails all. Their memory may be used for good.
  void retain_all(const base::Status& why);

 private:
  struct Moving {
    Entry entry;
    transport::Ticket ticket;
  };
  // The streams between this rank and another rank of its host. In each direction the first entry moves.
  struct Streams {
    transport::PayloadWriter out;
    transport::PayloadReader in;
    std::deque<Entry> sends{}, receives{};
  };
  // post(entry) gives the ticket. It may throw: then the entry is here to be retained.
  template <typename Post>
  void start(Entry entry, Post post);
  // Null: that rank has no part in this one's window.
  Streams* streams_with(int peer);
  template <typename Advance>
  bool advance(std::deque<Entry>& entries, int peer, Advance first);

  transport::Transport& transport_;
  SharedState& shared_;
  std::vector<Moving> moving_;
  std::map<int, Streams> streams_;  // by peer
  std::size_t streamed_ = 0;        // entries in them
};

}  // namespace hvdlite::engine
