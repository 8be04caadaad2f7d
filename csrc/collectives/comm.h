// What an algorithm runs on: the members of one process set and a private tag range for one operation.
// Thread: the holder of the progress token. Owns: nothing but its member list. Blocks: no. Throws: what Transport throws.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/types.h"
#include "collectives/shared_channel.h"
#include "transport/transport.h"

namespace hvdlite::collectives {

// Channels keep independent message streams of one operation apart (pipelined segments, say): each matches in its own order.
inline constexpr int kChannelBits = 3;
inline constexpr int kNumChannels = 1 << kChannelBits;

class Comm {
 public:
  // members: the transport ranks of the set in ascending order; index: this rank's place among them; tag: unique among
  // the operations in flight between these ranks (its low kChannelBits are the channel); set: whose members they are;
  // shared: what the set's members on this host share, null if there is nothing.
  Comm(transport::Transport& transport, std::shared_ptr<const std::vector<int>> members, int index,
       std::uint32_t tag, base::SetId set = {}, SharedChannel* shared = nullptr)
      : transport_(&transport),
        members_(std::move(members)),
        index_(index),
        tag_(tag),
        set_(set),
        shared_(shared) {}

  base::SetId set() const { return set_; }
  int rank() const { return index_; }
  int size() const { return static_cast<int>(members_->size()); }

  transport::Ticket send(int peer, int channel, const void* data, std::size_t bytes) {
    return transport_->post_send(global(peer), tag_ | static_cast<std::uint32_t>(channel), data,
                                 bytes);
  }
  transport::Ticket recv(int peer, int channel, void* data, std::size_t bytes) {
    return transport_->post_recv(global(peer), tag_ | static_cast<std::uint32_t>(channel), data,
                                 bytes);
  }
  bool test(transport::Ticket& ticket) { return transport_->test(ticket); }

  SharedChannel* shared() const { return shared_; }
  // Stands for the member's host: equal for members on one host.
  int host_of(int peer) const { return transport_->host_of(global(peer)); }
  // After telling a member of this host something in shared memory: wakes it if it sleeps.
  void ring(int peer) { transport_->ring(global(peer)); }
  void note_progress() { transport_->note_progress(); }

 private:
  int global(int peer) const { return (*members_)[static_cast<std::size_t>(peer)]; }

  transport::Transport* transport_;
  std::shared_ptr<const std::vector<int>> members_;
  int index_;
  std::uint32_t tag_;
  base::SetId set_;
  SharedChannel* shared_;
};

}  // namespace hvdlite::collectives
