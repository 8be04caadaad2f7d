// Handles: the numbers callers hold, and what became of the operation behind each.
// Thread: any; one lock, never held across a transport call. Owns: completions, and through them outputs the engine made.
// Blocks: no. Throws: Error(InvalidArgument) for a number that names nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/output_cache.h"
#include "engine/request.h"

namespace hvdlite::engine {

// The outcome of one submitted operation. The token holder fills in the fields and then sets done; readers look at done
// (acquire) first.
struct Completion {
  std::uint64_t record = 0;  // its number in the flight recorder
  std::atomic<std::uint32_t> done{0};
  base::Status status;
  std::int32_t contributors = 0;
  std::int32_t value = -1;                    // join: last rank; add_process_set: the new id
  std::vector<std::int64_t> shape;            // of the output the engine made
  std::vector<std::int64_t> received_splits;  // alltoall
  std::size_t output_bytes = 0;
  OutputCache::Block output;  // of allgather, alltoall and reducescatter
};
using CompletionPtr = std::shared_ptr<Completion>;

class HandleTable {
 public:
  std::int64_t add(CompletionPtr completion);
  CompletionPtr find(std::int64_t handle) const;
  void release(std::int64_t handle);

 private:
  mutable std::mutex mutex_;
  std::int64_t next_ = 1;
  std::unordered_map<std::int64_t, CompletionPtr> completions_;
};

}  // namespace hvdlite::engine
