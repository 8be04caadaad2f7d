// Kernels that the fake GPU can run: the very source of csrc/cuda compiled for the host, and a few of our own for its tests.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#pragma GCC visibility push(default)  // the other fake libraries call it, too
namespace fake {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

}  // namespace fake
#pragma GCC visibility pop

// What a kernel finds around it.
extern thread_local fake::Dim3 blockIdx, threadIdx, blockDim, gridDim;

#pragma GCC visibility push(default)
namespace fake {

struct HostKernel {
  const char* name;
  std::vector<std::size_t> parameters;   // their sizes
  void (*run)(void* const* parameters);  // one thread of the grid
};

const std::vector<HostKernel>& host_kernels();
const HostKernel* find_kernel(const std::string& name);
// All threads of the grid, one after the other.
void run_grid(const HostKernel& kernel, const Dim3& grid, const Dim3& block,
              void* const* parameters);

// What fake NVRTC's images begin with; a line with the name of each kernel follows.
inline constexpr char kImageMark[] = "fake image of kernels\n";
// In front of the number of the CUDA whose compiler has made it; the driver takes none of a later major version.
inline constexpr char kImageCuda[] = "of CUDA ";
}  // namespace fake
#pragma GCC visibility pop
