// What an ended operation left behind, copied out of the engine so that its handle can be released at once.
// Thread: with the GIL held. Owns: the output until take_data hands it to Python. Blocks: no.
#pragma once

#include <memory>
#include <vector>

#include "binding.h"

namespace hvdlite::python {

// Output that the engine allocated; exports Python's buffer protocol and frees itself.
struct OwnedBytes {
  struct Free {
    void operator()(void* data) const { hvdlite_free(data); }
  };
  std::unique_ptr<void, Free> data;
  std::size_t size = 0;
};

struct Result {
  std::int32_t contributors = 0;
  std::int32_t last_joined_rank = -1;
  std::int32_t process_set = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> received_splits;
  OwnedBytes output;
  bool taken = false;
};

// Copies the result of a successful operation and takes its output over.
Result collect_result(hvdlite_engine* engine, std::int64_t handle);

}  // namespace hvdlite::python
