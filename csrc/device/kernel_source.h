// The kernels as they were when the library was built: their source, and a fat binary if the build found nvcc. CMake generates
// the function bodies.
// Thread: any. Owns: constants of the library. Blocks: no. Throws: nothing.
#pragma once

#include <span>

namespace hvdlite::device {

struct KernelFile {
  const char* name;  // as it is included: "cuda/fusion_values.h"
  const char* text;
};

// The files of csrc/cuda. The first one is compiled; it includes the others.
std::span<const KernelFile> kernel_files();

// Null if the build found no nvcc.
const void* built_in_image();

}  // namespace hvdlite::device
