// The fusion kernels, loaded on one GPU. The source is the built-in image, if the driver accepts it; otherwise an image of
// NVRTC: the one that an earlier process has kept, or one that is compiled now. (The version of NVRTC is part of the file's
// name, so even a kept image is found only if an NVRTC can be loaded.) If there are several NVRTCs, those of the driver's CUDA
// or an earlier one come first, because the driver refuses images of a later CUDA. If one NVRTC fails, or the driver refuses
// its image, the next one is tried.
// Thread: any. Owns: the loaded module. Blocks: compiling takes seconds. Throws: Error(Unsupported) if nothing works; its text
// lists each attempt with its failure.
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
  // Loads the kernel now. If its first launch loaded it, the load could wait for other kernels, such as one of NCCL that waits
  // for a peer.
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
