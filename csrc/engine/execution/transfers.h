// Payloads on their way between this rank and another, that both have agreed to move: in a host that shares a window through it
// (transport/payload_stream.h), else as messages of the transport. Tensors on GPUs go through page-locked memory
// (gpu/message_staging.h).
// Thread: the holder of the progress token. Owns: their entries and page-locked memory. Blocks: never, but for copying. Throws: what
// Transport and a GPU's driver throw, and Error(Internal) for what no correct rank sends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/execution/gpu/message_staging.h"
#include "engine/intake/shared_state.h"
#include "engine/model/entry.h"
#include "transport/payload_stream.h"
#include "transport/transport.h"

namespace hvdlite::engine {

class Transfers {
 public:
  Transfers(transport::Transport& transport, SharedState& shared, DeviceWatcher& watcher)
      : transport_(transport), shared_(shared), staging_(shared.devices, watcher) {}

  // Two ranks start the payloads between them in one order.
  void send(Entry entry, int to);
  void receive(Entry entry, int from);
  // The payload of a receive is here already.
  void take(Entry receive, const void* payload);
  // A message of this rank to itself.
  void take_own(Entry receive, Entry send);
  // Moves them on, and ends those that are over; true if anything moved.
  bool advance();
  bool idle() const { return moving_.empty() && own_.empty() && queued_ == 0; }
  bool idle(SetId set) const;
  // Have the GPUs done all copies?
  bool settled() const { return staging_.settled(); }
  template <typename Visit>
  void for_each(Visit visit) const {
    const auto visit_entry = [&](const Moving& each) { visit(each.entry); };
    std::ranges::for_each(moving_, visit_entry);
    for (const auto& [receive, send] : own_) {
      visit(receive);
      visit_entry(send);
    }
    for (const auto& [peer, queues] : queues_) {
      std::ranges::for_each(queues.sends, visit_entry);
      std::ranges::for_each(queues.receives, visit_entry);
    }
  }
  // Fails all. Their memory may be used for good.
  void retain_all(const base::Status& why);
  // Called when the transport is closed. memory_is_free: the transport does not touch it any more.
  void close(bool memory_is_free);

 private:
  struct Moving {
    Entry entry;
    StagedMemory staged{};
    transport::Ticket ticket{};
  };
  // The rings between this rank and another rank of its host.
  struct Streams {
    transport::PayloadWriter out;
    transport::PayloadReader in;
  };
  // The payloads to and from another rank. In each direction the first moves. Without streams the transport has all receives at
  // once, and sends wait here for their tensors only.
  struct Queues {
    std::optional<Streams> streams{};
    std::deque<Moving> sends{}, receives{};
  };
  Queues& queues_with(int peer);
  // Gives the transfer to the transport. post() gives the ticket. It may throw: then the entry is here to be retained.
  template <typename Post>
  void start(Moving transfer, Post post);
  bool post_sends(Queues& queues, int to);
  // Is the payload of this send in host memory?
  bool is_here(Moving& send);
  static const void* source_of(const Moving& send);
  static void* target_of(const Moving& receive);
  // Page-locked memory, if the tensor is on a GPU.
  void make_room(Moving& receive);
  void finish(Moving& transfer);
  bool advance_own();
  template <typename Advance>
  bool advance(std::deque<Moving>& transfers, int peer, Advance first);

  transport::Transport& transport_;
  SharedState& shared_;
  MessageStaging staging_;
  std::vector<Moving> moving_;                // those that the transport has
  std::deque<std::pair<Entry, Moving>> own_;  // receive and send of messages to itself
  std::map<int, Queues> queues_;              // by peer
  std::size_t queued_ = 0;                    // transfers in them
  std::vector<StagedMemory> retained_;
};

}  // namespace hvdlite::engine
