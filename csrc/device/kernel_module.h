// The fusion kernels, loaded on one GPU. They come from the built-in image, if the driver accepts it. Otherwise they come from
// an image of NVRTC, which an earlier process has kept or which is compiled now. (The name of a kept image's file depends on
// the version of NVRTC, so a kept image, too, is found only if an NVRTC can be loaded.) If several NVRTCs can be loaded, those
// of the driver's version of CUDA or of an earlier version come first, because the driver may refuse images of a later version.
// If one NVRTC fails, or the driver refuses its image, the next NVRTC is tried.
// Thread: any. Owns: the loaded module. Blocks: compiling takes seconds. Throws: Error(Unsupported) if no image can be loaded;
// the error's text has the reason for each attempt.
#pragma once

#include <string>

#include "base/log.h"
#include "device/gpu.h"
#include "device/library.h"

namespace hvdlite::device {

struct KernelSource {
  Candidates nvrtc;
  std::string cache_folder;  // "" keeps nothing on disk
  base::Logger log = {};
};

class Nvrtc;

class KernelModule {
 public:
  KernelModule(GpuPtr gpu, const KernelSource& source);
  ~KernelModule();
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;
  // Loads the kernel now, and not at its first launch. There the load could wait for other kernels, such as a kernel of NCCL
  // that waits for a peer.
  cuda::Function function(const char* name) const;
  // "built in (for sm_90)", "compiled by NVRTC 13.0 (sm_90)", "from the cache (NVRTC 13.0, sm_90)".
  const std::string& origin() const { return origin_; }

 private:
  bool load(const void* image, std::string* problem);
  void compile_or_explain(const KernelSource& source, const std::string& problem);
  void compile(const KernelSource& source);
  void compile_by(const Nvrtc& nvrtc, const KernelSource& source);

  const GpuPtr gpu_;
  cuda::Module module_ = nullptr;
  std::string origin_;
};

}  // namespace hvdlite::device
