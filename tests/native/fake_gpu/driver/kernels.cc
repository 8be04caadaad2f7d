#include "driver/kernels.h"

#define HVDLITE_HOST_KERNELS
#include <cstdint>
#include <tuple>
#include <utility>

#include "cuda/fusion_kernels.cu"

thread_local fake::Dim3 blockIdx, threadIdx, blockDim, gridDim;

namespace fake {
namespace {

// --- kernels for tests of the fake itself ------------------------------------------------------------------------------

void fake_add(float* values, std::uint64_t count, float summand) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) values[i] += summand;
}

void fake_store(unsigned char* address, unsigned char value) { *address = value; }

// --- the table ---------------------------------------------------------------------------------------------------------

template <auto kKernel, typename... Arguments, std::size_t... kIndex>
HostKernel make(const char* name, void (*)(Arguments...), std::index_sequence<kIndex...>) {
  return {name, {sizeof(Arguments)...}, [](void* const* parameters) {
            kKernel(*static_cast<std::remove_reference_t<Arguments>*>(parameters[kIndex])...);
          }};
}

template <auto kKernel, typename... Arguments>
HostKernel make(const char* name, void (*kernel)(Arguments...)) {
  return make<kKernel>(name, kernel, std::index_sequence_for<Arguments...>());
}

}  // namespace

#define FAKE_KERNEL(name) make<&name>(#name, &name)
#define FAKE_ROW(name, ...) FAKE_KERNEL(name),

const std::vector<HostKernel>& host_kernels() {
  static const auto& kernels = *new std::vector<HostKernel>{
      FAKE_KERNEL(fake_add), FAKE_KERNEL(fake_store), HVDLITE_KERNEL_LIST(FAKE_ROW)};
  return kernels;
}

const HostKernel* find_kernel(const std::string& name) {
  for (const HostKernel& kernel : host_kernels()) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

void run_grid(const HostKernel& kernel, const Dim3& grid, const Dim3& block,
              void* const* parameters) {
  gridDim = grid;
  blockDim = block;
  const auto each = [](const Dim3& size, Dim3& at, auto&& action) {
    for (at.z = 0; at.z < size.z; ++at.z) {
      for (at.y = 0; at.y < size.y; ++at.y) {
        for (at.x = 0; at.x < size.x; ++at.x) action();
      }
    }
  };
  each(grid, blockIdx, [&] { each(block, threadIdx, [&] { kernel.run(parameters); }); });
}

}  // namespace fake
