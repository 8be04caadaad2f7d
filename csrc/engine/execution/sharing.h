// What the members of a process set on one host share: regions of the host's window.
// Thread: the holder of the progress token. Owns: the channels, whose end tells the regions' next users. Blocks: no. Throws: no.
#pragma once

#include <cstdint>
#include <memory>

#include "collectives/comm.h"
#include "collectives/host_map.h"
#include "collectives/shared_channel.h"
#include "engine/model/process_set.h"
#include "engine/negotiation/regions.h"
#include "transport/transport.h"

namespace hvdlite::engine {

using base::SetId;

// As collectives/comm.h has it; null where there is nothing, or nobody to share with.
struct SharedRegions {
  std::shared_ptr<collectives::SharedChannel> channel;
  std::shared_ptr<collectives::SharedChannel> second_channel;
  std::shared_ptr<const collectives::HostMap> hosts;

  collectives::Sharing sharing() const {
    return {channel.get(), second_channel.get(), hosts.get()};
  }
};

SharedRegions share(transport::Transport& transport, const ProcessSet& set,
                    const Regions::Grant& regions);

// As operations see it.
struct SharingSet : ProcessSet {
  SharedRegions shared;
};
using SharingSetPtr = std::shared_ptr<const SharingSet>;

// As those see it who start them.
struct ExecutionSet {
  SharingSetPtr host;  // for tensors in host memory
  // For GPUs' tensors that go through host memory: how fast they come must not decide whose turn it is in the other. Only the set
  // of all ranks shares anything there, from its first operation on GPU memory on.
  SharingSetPtr gpu;
  std::uint32_t next_operation = 0;  // the same on all members: part of the message tag

  SetId id() const { return host->id; }
};

}  // namespace hvdlite::engine
