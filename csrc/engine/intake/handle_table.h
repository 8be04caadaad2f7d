// Handles: the numbers that callers hold, and the completions behind each number.
// Thread: any; one lock, never held across a transport call. Owns: completions, and through them outputs that the engine made.
// Blocks: no. Throws: Error, as each function says, and std::bad_alloc.
//
//   handle = generation of the row * 2^24 + number of the row + 1
//
// When a row is used again, its generation is one higher. So an old handle never names a new submission. (A row has 2^39
// generations, more than a process can use.)
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "engine/model/entry.h"

namespace hvdlite::engine {

// The completions behind one handle: those of one submission, in one array.
struct CompletionArray {
  CompletionPtr first;
  std::size_t size = 0;
  Completion& operator[](std::size_t index) const { return first.get()[index]; }
  CompletionPtr at(std::size_t index) const { return {first, first.get() + index}; }
};

class HandleTable {
 public:
  // Adds a submission of at least one operation, and returns its handle. Throws Error(System) if all rows are in use.
  std::int64_t add(CompletionArray batch);
  // Throws Error(InvalidArgument) if the handle was released, or never existed.
  CompletionArray find(std::int64_t handle) const;
  // Frees the row for another submission. Does nothing if the handle was released already, or never existed.
  void release(std::int64_t handle);

 private:
  struct Row {
    CompletionArray batch;  // its size is 0 if the row is free
    std::int64_t generation = 0;
    std::uint32_t next_free = 0;
  };
  // The row of this handle; null if the handle was released, or never existed.
  const Row* row_of(std::int64_t handle) const;

  mutable std::mutex mutex_;
  std::vector<Row> rows_;
  std::uint32_t first_free_ = 0;  // equal to rows_.size() if no row is free
};

}  // namespace hvdlite::engine
