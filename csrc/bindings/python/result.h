// The result of an ended operation, copied out of the engine so that the work can be released at once.
// Thread: with the GIL held. Owns: the output; on the host it shares the output with callers that have asked for it. Blocks:
// no. Throws: ValueError for output that lies in other memory than the caller asks for; the classes of hvdlite.errors.
#pragma once

#include <memory>
#include <vector>

#include "binding.h"

namespace hvdlite::python {

struct BlockDeleter {
  void operator()(hvdlite_block* block) const { hvdlite_block_free(block); }
};
// Memory of the engine for a result. The destructor gives the memory back.
using OwnedBlock = std::unique_ptr<hvdlite_block, BlockDeleter>;

// Memory of the engine for a result, on the host. It exports Python's buffer protocol.
struct OwnedBytes {
  OwnedBlock block;
  std::size_t size = 0;
};

// A writable memoryview over the bytes; it keeps them alive.
nb::object as_memoryview(OwnedBytes bytes);

// A tuple of Python's integers.
nb::tuple as_tuple(const std::vector<std::int64_t>& values);

// Memory of the engine for a result, on a GPU.
struct GpuMemory {
  OwnedBlock block;
  std::size_t size = 0;
};

struct Result {
  std::int32_t contributors = 0;
  std::int32_t last_joined_rank = -1;
  std::int32_t process_set = 0;
  std::int32_t source = -1, tag = -1;  // of a received message
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> received_splits;
  std::int32_t device = HVDLITE_DEVICE_CPU;  // of the output
  OwnedBytes output;
  nb::object data;  // a view of the output, after a caller has asked for it
};

// Copies the result of a successful operation, at this place of a work, and takes its output over.
Result take_result(hvdlite_engine* engine, std::int64_t work, std::size_t place,
                   const hvdlite_result& native);

}  // namespace hvdlite::python
