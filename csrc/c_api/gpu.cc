// The part of the C ABI about memory on GPUs that a binding asks for.

#include "c_api/c_api.h"

using hvdlite::engine::alive;
using hvdlite::engine::guarded;

namespace hvdlite::engine {

// The pool knows hvdlite's operations on the memory. It does not know the user's work on it, which is ordered with the legacy
// default stream; so the memory is free after an event in that stream.
void take_back(hvdlite_block& block) noexcept {
  if (!block.gpu->in_own_process()) return block.gpu_memory.abandon();
  try {
    block.gpu_memory.free_after(block.gpu->record(nullptr));
  } catch (...) {
    // The GPU is lost, or a graph is under capture. So the end of the memory's use is unknown.
    block.gpu_memory.abandon();
  }
}

}  // namespace hvdlite::engine

int hvdlite_gpu_block_create(hvdlite_engine* engine, int32_t gpu, size_t bytes, void* stream,
                             hvdlite_block** out) {
  return guarded([&] {
    hvdlite::device::Buffer memory = alive(engine).new_gpu_output(gpu, bytes, stream);
    *out = new hvdlite_block{
        .memory = {}, .gpu_memory = std::move(memory), .gpu = alive(engine).gpu(gpu), .lent = true};
  });
}

int hvdlite_gpu_of_address(hvdlite_engine* engine, const void* address, int32_t* gpu) {
  return guarded([&] { *gpu = alive(engine).gpu_of_address(address); });
}
