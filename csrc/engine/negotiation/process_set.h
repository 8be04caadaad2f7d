// One process set as this rank sees it: members, what is being negotiated, the response cache, and operations in flight.
// Thread: the holder of the progress token. Owns: pending entries and, on the set's rank 0, the Coordinator. Blocks: no.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/comm.h"
#include "collectives/host_map.h"
#include "collectives/shared_channel.h"
#include "engine/model/entry.h"
#include "engine/negotiation/accord.h"
#include "engine/negotiation/coordinator.h"
#include "engine/negotiation/response_cache.h"

namespace hvdlite::engine {

// What the members on one host share (collectives/comm.h); null if there is nothing, or nobody to share with.
struct SharedRegions {
  std::shared_ptr<collectives::SharedChannel> channel;
  std::shared_ptr<collectives::SharedChannel> second_channel;
  std::shared_ptr<const collectives::HostMap> hosts;

  collectives::Sharing sharing() const {
    return {channel.get(), second_channel.get(), hosts.get()};
  }
};

// An entry of this rank that the set has not agreed on yet.
struct Pending {
  Entry entry;
  bool announced = false;
  bool by_slot = false;
};

struct ProcessSet {
  SetId id;
  std::shared_ptr<const std::vector<int>> members;  // global ranks, ascending
  int index = -1;                                   // of this rank among them, -1: not a member
  std::uint64_t seen = 0;                           // response lists processed
  std::uint32_t next_operation = 0;  // the same on all members: part of the message tag
  ResponseCache cache;
  std::unordered_map<std::string, Pending> pending;  // but for what the accord holds
  std::vector<std::string> to_announce;              // names in pending
  std::unique_ptr<Coordinator> coordinator;          // on the set's first member
  SharedRegions shared;
  // For GPUs' tensors that go through host memory: how fast they come must not decide whose turn it is in the other. Only the
  // global set has it, from its first operation on GPU memory on.
  SharedRegions staging;
  bool asked_for_staging = false;
  std::unique_ptr<Accord> accord;  // where all members are on this host and share memory
  base::Status broken;             // the coordinator has left: nothing can be agreed any more
  bool being_removed = false;      // this rank has asked for it, and submits no more

  bool is_member() const { return index >= 0; }
  // Is anything of this rank not agreed?
  bool has_pending() const { return !pending.empty() || (accord && accord->has_entries()); }
  int coordinator_rank() const { return members->front(); }
  int index_of(int rank) const;  // -1: not a member
};

}  // namespace hvdlite::engine
