// The steps of the constructor. The first image that the driver accepts ends them:
//
//    1  load the built-in image, if the build made one
//    2  for each NVRTC that can be loaded, in the order of by_fitness():
//          a  find a kept image of this NVRTC for this GPU, and load it
//          b  compile, load, and keep what was loaded
//    3  no image was loaded: throw an error with the reason of step 1 and the reasons of the NVRTCs
//
// An example of step 2: the driver knows CUDA 12.4, and libnvrtc.so.13, libnvrtc.so.12 and libnvrtc.so.11.2 can be loaded. The
// order is 12, 11.2, 13, because the driver may refuse the image of 13. If 12 lacks a function, or fails to compile, or the
// driver refuses its image, 11.2 is tried.
//
// An image is kept only after the driver has accepted it. In another process the driver can still refuse it, for example an
// older driver of another machine that shares the folder. In this case step b follows.
#include "device/kernel_module.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "device/kernel_cache.h"
#include "device/nvrtc.h"

namespace hvdlite::device {

using base::Error;
using base::ErrorCode;

namespace {

// A hash of everything on which an image depends. It is part of the file's name. So if one of these changes, the old file is
// not found.
std::uint64_t cache_key(const std::string& nvrtc_version, int compute_capability) {
  base::Hasher hash;
  for (const KernelFile& file : kernel_files()) {
    hash.add_text(file.name);
    hash.add_text(file.text);
  }
  for (const char* const option : nvrtc_options()) hash.add_text(option);
  hash.add_text(nvrtc_version);
  hash.add_signed(compute_capability);
  return hash.value();
}

std::string file_name(int compute_capability, std::uint64_t key) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "fusion-sm_%d-%016llx.kernels", compute_capability,
                static_cast<unsigned long long>(key));
  return name.data();
}

// The major version of CUDA in a library's file name: 12 for libnvrtc.so.12, and 11 for libnvrtc.so.11.2. 0: the name has none.
int major_of(const std::string& path) {
  constexpr std::string_view kEnd = ".so.";
  const std::size_t end = path.rfind(kEnd);
  return end == std::string::npos ? 0 : std::atoi(path.c_str() + end + kEnd.size());
}

// First the libraries of the driver's major version of CUDA or an earlier one, and those without a version in their names; then
// the others. Within both groups the order of the list stays: in the default list those that the process has loaded come first
// (hvdlite/gpu.py).
Candidates by_fitness(Candidates candidates, int driver_major) {
  std::ranges::stable_partition(
      candidates, [&](const std::string& path) { return major_of(path) <= driver_major; });
  return candidates;
}

}  // namespace

// load() loads into the current context, so one Current lasts for the whole constructor.
KernelModule::KernelModule(GpuPtr gpu, const KernelSource& source) : gpu_(std::move(gpu)) {
  const Current current(*gpu_);
  const std::string sm = "sm_" + std::to_string(gpu_->compute_capability());
  std::string problem = "this build has none, since it found no nvcc";
  if (built_in_image() != nullptr && load(built_in_image(), &problem)) {
    origin_ = "built in (for " + sm + ")";
  } else {
    compile_or_explain(source, problem);
  }
  source.log.write(base::LogLevel::kInfo, "device",
                   "fusion kernels of GPU " + std::to_string(gpu_->ordinal()) + " (" +
                       gpu_->name() + "): " + origin_);
}

// problem: why there is no built-in image, or why the driver has refused it. The error has this reason and those of the NVRTCs,
// because either another build or another NVRTC solves the user's problem.
void KernelModule::compile_or_explain(const KernelSource& source, const std::string& problem) {
  try {
    compile(source);
  } catch (const Error& error) {
    throw Error(ErrorCode::kUnsupported,
                "there are no fusion kernels for GPU " + std::to_string(gpu_->ordinal()) + " (" +
                    gpu_->name() + ", sm_" + std::to_string(gpu_->compute_capability()) +
                    "). Built-in image: " + problem + ". Compiled now: " + error.what() +
                    ". Install NVRTC of a CUDA version that the driver knows (pip install "
                    "nvidia-cuda-nvrtc) or name its library in HVDLITE_NVRTC_LIBRARY");
  }
}

KernelModule::~KernelModule() {
  if (module_ == nullptr) return;
  gpu_->clean_up([&](const cuda::Functions& call) { call.ModuleUnload(module_); });
}

// The driver takes the machine code for this GPU from a fat binary. If there is none, the driver translates the PTX for this
// GPU. If that, too, is impossible with this driver, it refuses the image.
bool KernelModule::load(const void* image, std::string* problem) {
  const cuda::Result result = gpu_->call().ModuleLoadData(&module_, image);
  if (result == cuda::kSuccess) return true;
  module_ = nullptr;
  *problem = gpu_->driver().describe(result, "cuModuleLoadData");
  return false;
}

void KernelModule::compile(const KernelSource& source) {
  std::string problems;
  for (const std::string& candidate : by_fitness(source.nvrtc, gpu_->driver().version() / 1000)) {
    if (!loads(candidate)) continue;
    try {
      compile_by(Nvrtc(Candidates{candidate}), source);
      return;
    } catch (const Error& error) {
      const std::string problem = error.what();
      // Two candidates may stand for one library, such as +libnvrtc.so.12 and libnvrtc.so.12. Their error is listed once.
      if (problems.find(problem) != std::string::npos) continue;
      problems += (problems.empty() ? "" : "; and then: ") + problem;
    }
  }
  // If no NVRTC can be loaded, this throws the error that says what was tried.
  if (problems.empty()) return compile_by(Nvrtc(source.nvrtc), source);
  throw Error(ErrorCode::kUnsupported, problems);
}

void KernelModule::compile_by(const Nvrtc& nvrtc, const KernelSource& source) {
  const int capability = gpu_->compute_capability();
  const std::uint64_t key = cache_key(nvrtc.version(), capability);
  const std::string name = file_name(capability, key);
  const KernelCache cache(source.cache_folder, source.log);
  std::string problem;
  const std::optional<std::string> kept = cache.find(name, key);
  if (kept && load(kept->data(), &problem)) {
    origin_ =
        "from the cache (NVRTC " + nvrtc.version() + ", sm_" + std::to_string(capability) + ")";
    return;
  }
  const Nvrtc::Image image = nvrtc.compile(kernel_files(), capability);
  if (!load(image.bytes.data(), &problem)) {
    throw Error(ErrorCode::kUnsupported,
                "the driver (for CUDA " + std::to_string(gpu_->driver().version() / 1000) + "." +
                    std::to_string(gpu_->driver().version() % 1000 / 10) +
                    ") does not take what NVRTC " + nvrtc.version() + " (" + nvrtc.path() +
                    ") made for " + image.architecture + ": " + problem);
  }
  cache.keep(name, key, image.bytes);
  origin_ = "compiled by NVRTC " + nvrtc.version() + " (" + image.architecture + ")";
}

cuda::Function KernelModule::function(const char* name) const {
  cuda::Function function = nullptr;
  const Current current(*gpu_);
  gpu_->driver().check(gpu_->call().ModuleGetFunction(&function, module_, name),
                       "cuModuleGetFunction");
  return function;
}

}  // namespace hvdlite::device
