// The fusion kernels, loaded on one GPU: the built-in image if the driver takes it, else what an earlier process compiled, else
// what NVRTC compiles now. Of several NVRTCs those go first that are not of a later CUDA than the driver, which takes no images of
// such; and where one fails, or makes what the driver does not take, the next is tried.
// Thread: any. Owns: the loaded module. Blocks: compiling takes seconds. Throws: Error(Unsupported) if there is no way; its text
// has every way that was tried, and why it failed.
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
  // A kernel is loaded by this, not by its first launch: that could wait for others, such as one of NCCL that waits for a peer.
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
