// The kernels as they were when the library was built: their source always, a fat binary where nvcc was found. CMake generates
// the bodies.
// Thread: any. Owns: constants of the library. Blocks: no. Throws: nothing.
#pragma once

#include <span>

namespace hvdlite::device {

struct KernelFile {
  const char* name;  // as it is included: "cuda/fusion_values.h"
  const char* text;
};

// All of csrc/cuda that is compiled; the first one is compiled, the others it includes.
std::span<const KernelFile> kernel_files();

// Null where no nvcc was found.
const void* built_in_image();

}  // namespace hvdlite::device
