// Moves the payloads of matched sends and receives. Payloads travel through payload streams (transport/payload_stream.h)
// between ranks that share a host's window, and in the transport's messages between other ranks. Tensors on GPUs go through
// page-locked memory (gpu/message_staging.h). PointToPoint matches the sends and receives, and starts their transfers;
// Execution advances them.
// Thread: the holder of the progress token. Owns: the entries of transfers that have not ended, and their page-locked memory.
// Blocks: as operation.h says, and while it copies a payload. Throws: what Transport and a GPU's driver throw, and
// Error(Internal) for payloads that no correct rank sends.
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

  // Start a transfer. A sender and its receiver must start the transfers from this sender to this receiver in the same order.
  void send(Entry entry, int to);
  void receive(Entry entry, int from);
  // Copies the payload of a small message, which came in the Offer, and ends the receive.
  void take(Entry receive, const void* payload);
  // Copies a message of this rank to itself, and ends both entries: at once, or in a later advance() if the sent tensor is not
  // in host memory yet.
  void take_own(Entry receive, Entry send);
  // Advances the transfers, and ends the finished ones. Returns true if anything moved.
  bool advance();
  bool idle() const { return moving_.empty() && own_.empty() && queued_ == 0; }
  bool idle(SetId set) const;
  // Have the GPUs done all copies to tensors?
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
  // Fails all transfers, and retains their page-locked memory, because the transport may still touch it.
  void retain_all(const base::Status& why);
  // Call it after the transport has been closed. memory_is_free: the transport does not touch the retained memory any more.
  void close(bool memory_is_free);

 private:
  // A transfer that has not ended. staged: for a tensor on a GPU. ticket: for a payload that the transport moves.
  struct Moving {
    Entry entry;
    StagedMemory staged{};
    transport::Ticket ticket{};
  };
  // The payload streams to and from another rank of this host.
  struct Streams {
    transport::PayloadWriter out;
    transport::PayloadReader in;
  };
  // The transfers to and from one other rank, without those that the transport has. With streams, the first transfer of each
  // direction moves, and the later ones wait. Without streams, only sends wait here: the transport gets receives at once, and
  // sends in their order, each when its tensor is in host memory.
  struct Queues {
    std::optional<Streams> streams{};
    std::deque<Moving> sends{}, receives{};
  };
  Queues& queues_with(int peer);
  // Adds the transfer to moving_ and calls post(), which gives the transfer to the transport and returns the ticket. If post()
  // throws, retain_all() finds the entry in moving_.
  template <typename Post>
  void start(Moving transfer, Post post);
  bool post_sends(Queues& queues, int to);
  // Logs, once, that this process is not allowed to read the memory of rank `peer`. error: the errno with the reason; 0: there
  // is nothing to log.
  void tell_refusal(int peer, int error);
  // Is the payload of this send in host memory? If the tensor is on a GPU, is_here() also starts the copy, as soon as the
  // tensor is ready.
  bool is_here(Moving& send);
  static const void* source_of(const Moving& send);
  static void* target_of(const Moving& receive);
  // Allocates page-locked memory, if the tensor is on a GPU.
  void make_room(Moving& receive);
  void finish(Moving& transfer);
  bool advance_own();
  template <typename Advance>
  bool advance(std::deque<Moving>& transfers, int peer, Advance first);

  transport::Transport& transport_;
  SharedState& shared_;
  MessageStaging staging_;
  std::vector<Moving> moving_;  // transfers that the transport has, or that are being copied
  std::deque<std::pair<Entry, Moving>> own_;  // receive and send of this rank's messages to itself
  std::map<int, Queues> queues_;              // by peer
  std::size_t queued_ = 0;                    // the number of transfers in queues_
  bool told_refusal_ = false;
  std::vector<StagedMemory> retained_;
};

}  // namespace hvdlite::engine
