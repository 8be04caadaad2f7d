// Memory that Engine gives its callers: memory for results, and arenas.
//
// create_arena() checks the set, the size, the knob HVDLITE_SHARED_MEMORY, the members' hosts, shares_memory and the kind, in
// this order. shares_memory (SetDirectory::Info) is also false if the members are on several hosts. So create_arena() checks
// the hosts before shares_memory: then the error names the real cause.
//
// A result whose size the caller knows is allocated in the caller's thread, and not in a pass of the engine: new pages take
// time, and a pass that waits for them would delay all operations in flight.

#include <string>

#include "engine/engine.h"

namespace hvdlite::engine {

using base::Error;
using base::ErrorCode;

OutputCache::Block Engine::new_output(std::size_t bytes) const {
  require_usable();
  // After a failure, another rank that does not know of the failure may still store into results of the last operations. If the
  // cache reused the memory of such a result, the store would destroy the new result. So after a failure new results lie in
  // memory that no other rank maps.
  return shared_.outputs->get(bytes, /*open=*/!shared_.failure.happened());
}

device::Buffer Engine::new_gpu_output(int gpu, std::size_t bytes, void* stream) {
  device::Buffer memory =
      shared_.devices.device(gpu).memory->get(bytes, static_cast<device::cuda::Stream>(stream));
  // The caller will submit operations at this address. After lend() the pool reuses the memory only when these operations have
  // ended, even if the buffer is returned earlier.
  memory.lend();
  return memory;
}

// Null addresses: if each rank of a host sees all GPUs of the host, and there are at least as many GPUs as ranks, each rank
// gets a GPU of its own.
int Engine::gpu_of_address(const void* address) {
  const device::Driver& driver = shared_.devices.driver();
  if (address != nullptr) return device::gpu_of_address(driver, address);
  return topology_.local_rank % driver.devices();
}

std::unique_ptr<ArenaDraft> Engine::create_arena(std::int32_t set, const std::string& kind,
                                                 std::size_t bytes) {
  require_usable();
  const auto info = shared_.sets.find(set);
  if (!info || info->index < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "process set " + std::to_string(set) +
                    " does not exist or does not include this rank: no arena can be made for it");
  }
  if (bytes == 0) throw Error(ErrorCode::kInvalidArgument, "an arena needs at least one byte");
  const std::string& allowed = shared_.config.shared_memory;
  if (allowed != "auto" && allowed != kind) {
    throw Error(ErrorCode::kUnsupported,
                "HVDLITE_SHARED_MEMORY=" + allowed + " does not allow an arena in " + kind);
  }
  for (const int member : *info->members) {
    if (transport_->host_of(member) == transport_->host_of(topology_.rank)) continue;
    throw Error(ErrorCode::kUnsupported, "the ranks of process set " + std::to_string(set) +
                                             " are on several hosts and cannot share an arena");
  }
  if (!info->shares_memory) {
    throw Error(ErrorCode::kUnsupported,
                "the ranks of process set " + std::to_string(set) +
                    " have no channel through shared memory, which an arena needs (the machine "
                    "gives none, or too many process sets use it already)");
  }
  const bool memfd = kind == "memfd";
  if (!memfd && kind != "shm") {
    throw Error(ErrorCode::kInvalidArgument,
                "unknown kind of shared memory '" + kind + "'; known: memfd, shm");
  }
  // The upper half of the id is this rank's number, and the lower half counts this rank's arenas from 1. So no id is 0, and in
  // a request 0 can mean "in no arena".
  // Ids of different ranks are never equal, and an engine uses no id twice.
  const std::int64_t id = (std::int64_t{topology_.rank} << 32) | (arenas_created_.fetch_add(1) + 1);
  using Kind = transport::SharedMemory::Kind;
  return std::make_unique<ArenaDraft>(shared_.arenas, info->id,
                                      static_cast<int>(info->members->size()), info->index, id,
                                      memfd ? Kind::kMemfd : Kind::kShm, bytes);
}

}  // namespace hvdlite::engine
