// One operation as this rank sees it, from the call to the end: the request, its memory, and the result. Also the agreed
// operations, several of which may run as one.
// Thread: an Entry has one owner at a time. The submitting thread makes the Completion. Later the holder of the progress token
// (the thread that drives the engine, engine.h) writes the result there and then sets `done`; readers load `done` (acquire)
// first. Owns: the output that the engine made. Blocks: no. Throws: std::bad_alloc.
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
struct EngineOutput {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> received_splits;  // alltoall: the rows from each member
  std::size_t bytes = 0;
  OutputCache::Block block;
  // Holds the output instead of `block`, if the input lies on a GPU. After this buffer has returned to its pool, only work that
  // comes after the operation's event uses the memory again.
  device::Buffer gpu_block;
  std::int32_t device = -1;  // the GPU of gpu_block; -1: `block` holds the output

  void* data() const { return device < 0 ? block.get() : gpu_block.data(); }
};

// A callback of one submission. When all operations of the submission have ended, the thread that held the progress token calls
// it (Engine::tell) and deletes it.
struct Watcher {
  std::size_t awaited = 0;  // operations that have not ended
  void (*then)(void*) = nullptr;
  void* data = nullptr;
};

// The result of one operation. It is small, because a training step with thousands of small tensors has thousands of
// completions.
struct Completion {
  std::uint64_t record = 0;  // the operation's number in the flight recorder
  std::atomic<std::uint32_t> done{0};
  std::int32_t contributors = 0;  // members with a value; recv: the tag of the message
  // join: the rank that joined last. add_process_set: the new id. recv: the sender.
  std::int32_t value = -1;
  std::uint8_t usage = 0;    // for the holder of the progress token: the entry's state in Usage
  bool pool_thread = false;  // a thread of a framework's pool has submitted the operation
  std::unique_ptr<const base::Status> failure;
  std::unique_ptr<EngineOutput> output;
  Watcher* watcher = nullptr;
  device::EventPtr event;  // for GPU memory: after this event the GPU has done the operation's work

  bool is_done() const { return done.load(std::memory_order_acquire) != 0; }
};
using CompletionPtr = std::shared_ptr<Completion>;

// The caller owns the memory, and must keep it valid until the completion is done. GPU memory must stay valid until the GPU
// has reached the completion's event. After some failures a transfer may still use the memory, so the memory must stay valid
// for ever (memory_is_free in bindings/ending.h).
struct Entry {
  RequestPtr request;
  const void* input = nullptr;
  void* output = nullptr;
  CompletionPtr completion;
  std::shared_ptr<const transport::Arena> arena;  // the arena that the request names, if any
  // For GPU memory: after this event the input can be read and the output written.
  device::EventPtr ready;
  Weight weight;  // of a weighted request
};

// One operation on which all members have agreed.
struct AgreedOperation {
  RequestPtr request;
  std::int32_t contributors = 0;  // members with a value
  bool failed = false;            // the members agreed on an error
  std::int32_t divisor = 0;       // of an Average; 0: the number of members
};

// Agreed operations that run as one collective. A single operation is a FusedOp, too.
struct FusedOp {
  std::vector<AgreedOperation> parts;
  std::vector<std::int64_t> sizes;  // as Response::sizes; empty if several operations run

  const Request& first() const { return *parts.front().request; }
};

}  // namespace hvdlite::engine
