// What the engine does for a caller on GPUs that is no operation.

#include "engine/engine.h"

namespace hvdlite::engine {

device::Buffer Engine::new_gpu_output(int gpu, std::size_t bytes, void* stream) {
  device::Buffer memory =
      shared_.devices.device(gpu).memory->get(bytes, static_cast<device::cuda::Stream>(stream));
  memory.lend();
  return memory;
}

int Engine::gpu_of_address(const void* address) {
  const device::Driver& driver = shared_.devices.driver();
  if (address != nullptr) return device::gpu_of_address(driver, address);
  return topology_.local_rank % driver.devices();
}

}  // namespace hvdlite::engine
