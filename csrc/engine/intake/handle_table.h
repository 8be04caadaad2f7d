// Handles: the numbers callers hold, and what became of the operations behind each.
// Thread: any; one lock, never held across a transport call. Owns: completions, and through them outputs the engine made.
// Blocks: no. Throws: Error(InvalidArgument) for a number that names nothing.
//
//   handle = generation of the slot * 2^24 + number of the slot + 1
//
// A slot is reused, its generation then is another, so an old handle does not name a new operation (before 2^39 reuses).
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "engine/model/entry.h"

namespace hvdlite::engine {

// The completions behind one handle: those of one submission, which lie in one array.
struct CompletionArray {
  CompletionPtr first;
  std::size_t size = 0;
  Completion& operator[](std::size_t index) const { return first.get()[index]; }
  CompletionPtr at(std::size_t index) const { return {first, first.get() + index}; }
};

class HandleTable {
 public:
  // Of at least one.
  std::int64_t add(CompletionArray batch);
  CompletionArray find(std::int64_t handle) const;
  void release(std::int64_t handle);

 private:
  struct Row {
    CompletionArray batch;  // of size 0: free
    std::int64_t generation = 0;
    std::uint32_t next_free = 0;
  };
  // The slot a handle names; null if it names nothing.
  const Row* slot_of(std::int64_t handle) const;

  mutable std::mutex mutex_;
  std::vector<Row> slots_;
  std::uint32_t first_free_ = 0;  // slots_.size(): none
};

}  // namespace hvdlite::engine
