// A Comm: the members of one process set, and a range of tags that only one operation uses. Every algorithm gets a Comm.
// Thread: the holder of the progress token. Owns: nothing but its member list. Blocks: no. Throws: what Transport throws.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/types.h"
#include "collectives/host_map.h"
#include "collectives/shared_channel.h"
#include "transport/transport.h"

namespace hvdlite::collectives {

// Channels separate independent message streams of one operation, such as pipelined segments. The sends and receives of one
// channel match in their order, whatever happens on other channels.
inline constexpr int kChannelBits = 3;
inline constexpr int kNumChannels = 1 << kChannelBits;
// The number of channels that one algorithm may use. It is half of all, so that two algorithms can run at the same time in one
// operation (Comm::half).
inline constexpr int kPartChannels = kNumChannels / 2;

// The memory that a set's members on this host share. In a set on several hosts either all members have such memory, including
// those that are alone on their host, or none has. A set on several hosts has two SharedChannels: one for the steps before the
// exchange between hosts, and one for the steps after it. So the turns of these two kinds of steps do not wait for each other.
struct Sharing {
  SharedChannel* channel = nullptr;         // null: nothing is shared
  SharedChannel* second_channel = nullptr;  // null if all members are on one host; so is `hosts`
  const HostMap* hosts = nullptr;
};

class Comm {
 public:
  // members: the transport ranks of the set in ascending order; index: this rank's place among them; tag: unique among
  // the operations in flight between these ranks, with zeros in its low kChannelBits; set: whose members they are.
  Comm(transport::Transport& transport, std::shared_ptr<const std::vector<int>> members, int index,
       std::uint32_t tag, base::SetId set = {}, Sharing sharing = {})
      : transport_(&transport),
        members_(std::move(members)),
        index_(index),
        tag_(tag),
        set_(set),
        sharing_(sharing) {}

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

  SharedChannel* shared() const { return sharing_.channel; }
  // Not null if the members are on several hosts and the members of each host share memory.
  const HostMap* hosts() const { return sharing_.hosts; }
  // The same members, with the second SharedChannel in the place of the first.
  Comm on_second_channel() const {
    Comm copy = *this;
    copy.sharing_ = {sharing_.second_channel, nullptr, nullptr};
    return copy;
  }
  // Some of the members, with this rank at place `index` among them, for an algorithm that runs as a part of this operation.
  // The new Comm has no shared memory, so such an algorithm can only send messages.
  Comm part(const std::vector<int>& members, int index) const {
    auto ranks = std::make_shared<std::vector<int>>();
    ranks->reserve(members.size());
    for (const int member : members) ranks->push_back(global(member));
    return {*transport_, std::move(ranks), index, tag_, set_};
  }
  // The same members with one half (0 or 1) of the channels: two algorithms that run at the same time need different halves.
  Comm half(int which) const {
    Comm copy = *this;
    copy.tag_ |= static_cast<std::uint32_t>(which * kPartChannels);
    return copy;
  }
  // A number that identifies the member's host: equal for members on the same host.
  int host_of(int peer) const { return transport_->host_of(global(peer)); }
  // Wakes a member of this host if it sleeps. Call it after writing something for the member to shared memory.
  void ring(int peer) { transport_->ring(global(peer)); }
  void note_progress() { transport_->note_progress(); }

 private:
  int global(int peer) const { return (*members_)[static_cast<std::size_t>(peer)]; }

  transport::Transport* transport_;
  std::shared_ptr<const std::vector<int>> members_;
  int index_;
  std::uint32_t tag_;
  base::SetId set_;
  Sharing sharing_;
};

}  // namespace hvdlite::collectives
