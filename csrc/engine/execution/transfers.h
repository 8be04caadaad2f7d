// Payloads on their way between this rank and another, that both have agreed to move.
// Thread: the holder of the progress token. Owns: their entries. Blocks: never. Throws: what Transport throws.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/intake/shared_state.h"
#include "engine/model/entry.h"
#include "transport/transport.h"

namespace hvdlite::engine {

class Transfers {
 public:
  Transfers(transport::Transport& transport, SharedState& shared)
      : transport_(transport), shared_(shared) {}

  // Two ranks start the payloads between them in one order.
  void send(Entry entry, int to);
  void receive(Entry entry, int from);
  // Ends those that are over; true if there were any.
  bool advance();
  bool idle() const { return moving_.empty(); }
  bool idle(SetId set) const;
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Moving& each : moving_) visit(each.entry);
  }
  // Fails all. Their memory may be used for good.
  void retain_all(const base::Status& why);

 private:
  struct Moving {
    Entry entry;
    transport::Ticket ticket;
  };
  // post(entry) gives the ticket. It may throw: then the entry is here to be retained.
  template <typename Post>
  void start(Entry entry, Post post);

  transport::Transport& transport_;
  SharedState& shared_;
  std::vector<Moving> moving_;
};

}  // namespace hvdlite::engine
