// What an algorithm runs on: the members of one process set and a private tag range for one operation.
// Thread: the holder of the progress token. Owns: nothing but its member list. Blocks: no. Throws: what Transport throws.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/types.h"
#include "transport/transport.h"

namespace hvdlite::collectives {

// Channels keep independent message streams of one operation apart (pipelined segments, say): each matches in its own order.
inline constexpr int kChannelBits = 3;
inline constexpr int kNumChannels = 1 << kChannelBits;

class Comm {
 public:
  // members: the transport ranks of the set in ascending order; index: this rank's place among them; tag: unique among
  // the operations in flight between these ranks (its low kChannelBits are the channel); set: whose members they are.
  Comm(transport::Transport& transport, std::shared_ptr<const std::vector<int>> members, int index,
       std::uint32_t tag, base::SetId set = {})
      : transport_(&transport), members_(std::move(members)), index_(index), tag_(tag), set_(set) {}

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

 private:
  int global(int peer) const { return (*members_)[static_cast<std::size_t>(peer)]; }

  transport::Transport* transport_;
  std::shared_ptr<const std::vector<int>> members_;
  int index_;
  std::uint32_t tag_;
  base::SetId set_;
};

}  // namespace hvdlite::collectives
