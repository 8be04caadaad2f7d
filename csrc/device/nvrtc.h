// NVRTC, NVIDIA's run-time compiler, opened at run time. It compiles the kernels' source to an image for one kind of GPU.
// Thread: any. Owns: the library. Blocks: compiling takes seconds. Throws: Error(Unsupported) if there is no NVRTC, if it knows
// no architecture that the GPU can run, or if it refuses the source (the text has its log).
#pragma once

#include <span>
#include <string>

#include "device/kernel_source.h"
#include "device/library.h"
#include "device/nvrtc_abi.h"

namespace hvdlite::device {

// The options of every compilation, without the architecture.
std::span<const char* const> nvrtc_options();

class Nvrtc {
 public:
  struct Image {
    std::string bytes;         // a CUBIN, or PTX with its final zero
    std::string architecture;  // "sm_90", or "compute_90": for the driver to compile
  };

  explicit Nvrtc(const Candidates& candidates);
  const std::string& path() const { return library_.path(); }
  const std::string& version() const { return version_; }  // "13.0"
  // compute_capability: 90 for 9.0. Returns machine code for this GPU, or PTX if NVRTC is older than the GPU.
  Image compile(std::span<const KernelFile> files, int compute_capability) const;

 private:
  struct Attempt;
  Attempt attempt(std::span<const KernelFile> files, const std::string& architecture) const;
  void check(nvrtc::Result result, const char* function) const;

  Library library_;
  nvrtc::Functions functions_;
  std::string version_;
};

}  // namespace hvdlite::device
