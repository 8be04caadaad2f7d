// One rank's part in one operation, from the call to its end: what is asked, of which memory, and what becomes of it. And what
// ranks have agreed to do, of which several may run as one.
// Thread: an Entry has one owner at a time; of a Completion the token holder fills in the fields and then sets done, and
// readers look at done (acquire) first. Owns: the output that the engine made. Blocks: no.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/buffers.h"
#include "device/gpu.h"
#include "engine/model/output_cache.h"
#include "engine/model/request.h"
#include "transport/arena.h"

namespace hvdlite::engine {

// The output that the engine made for an allgather, alltoall or reducescatter.
struct Output {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> received_splits;  // alltoall
  std::size_t bytes = 0;
  OutputCache::Block block;
  device::Buffer
      gpu_block;  // instead, if the input lies on a GPU; free once the operation's event has come
  std::int32_t device = -1;

  void* data() const { return device < 0 ? block.data() : gpu_block.data(); }
};

// Who wants to know when all operations of one submission have ended. Deleted when told.
struct Watcher {
  std::size_t awaited = 0;
  void (*then)(void*) = nullptr;
  void* data = nullptr;
};

// The outcome. Small: there are thousands of them where there are thousands of small tensors.
struct Completion {
  std::uint64_t record = 0;  // its number in the flight recorder
  std::atomic<std::uint32_t> done{0};
  std::int32_t contributors = 0;  // recv: the tag of what came
  std::int32_t value = -1;        // join: last rank; add_process_set: the new id; recv: the sender
  std::uint8_t usage = 0;         // the token holder's: where Usage counts it
  std::unique_ptr<const base::Status> failure;
  std::unique_ptr<Output> output;
  Watcher* watcher = nullptr;
  device::EventPtr event;  // of GPU memory: after it the GPU has done what was handed to it

  bool is_done() const { return done.load(std::memory_order_acquire) != 0; }
};
using CompletionPtr = std::shared_ptr<Completion>;

// The memory belongs to the caller and stays valid until the completion is done.
struct Entry {
  RequestPtr request;
  const void* input = nullptr;
  void* output = nullptr;
  CompletionPtr completion;
  std::shared_ptr<const transport::Arena> arena;  // the request's, if it names one
  device::EventPtr ready;  // of GPU memory: after it the input may be read and the output written
  double weight =
      0;  // of a weighted request: how much this rank's value counts, which other ranks need not agree on
};

// One operation that all members agreed to do.
struct Agreed {
  RequestPtr request;
  std::int32_t contributors = 0;  // members that gave a value
  bool failed = false;            // agreed to be an error
  std::int32_t divisor = 0;       // of an Average; 0: the number of members
};

// Executed as one collective; a single operation is a FusedOp too.
struct FusedOp {
  std::vector<Agreed> parts;
  std::vector<std::int64_t> sizes;  // the response's, of an operation by itself

  const Request& first() const { return *parts.front().request; }
};

}  // namespace hvdlite::engine
