// The first attempt compiles for the GPU itself (sm_NN: machine code). An NVRTC that is older than the GPU does not know this
// architecture. Then PTX is compiled for the newest architecture that NVRTC knows (compute_NN), and the driver translates it
// for the GPU. Only the error of an invalid option leads to the next attempt; an error in the source would be the same for all
// architectures. An example: a GPU of compute capability 12.0 and an NVRTC whose newest architecture is 90:
//
//    sm_120         refused: an invalid option
//    compute_120    refused, as are compute_103 and compute_100
//    compute_90     compiled: PTX, which the driver translates when the module is loaded
//
// The error code does not say which option is invalid. If NVRTC refuses another option, all attempts fail, and the error has
// the text of the last one.
#include "device/nvrtc.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace hvdlite::device {

using base::Error;
using base::ErrorCode;

namespace {

// The architectures of PTX, in the order of the attempts. A GPU can run PTX of its own architecture and of all older ones.
constexpr int kArchitectures[] = {121, 120, 103, 100, 90, 89, 87, 86, 80, 75};

// --fmad=false: no fused multiply-add, which would round a product and a sum once. csrc/kernels rounds twice, and the results
// must be equal.
constexpr const char* kOptions[] = {"--std=c++17", "--fmad=false"};

}  // namespace

std::span<const char* const> nvrtc_options() { return kOptions; }

// hvdlite does not check the version of NVRTC: it uses any library that has all these functions.
Nvrtc::Nvrtc(const Candidates& candidates)
    : library_("NVRTC (NVIDIA's run-time compiler)", candidates, "HVDLITE_NVRTC_LIBRARY") {
#define HVDLITE_NVRTC_LOAD(name, symbol, type) library_.require(&functions_.name, symbol);
  HVDLITE_NVRTC_FUNCTIONS(HVDLITE_NVRTC_LOAD)
#undef HVDLITE_NVRTC_LOAD
  int major = 0;
  int minor = 0;
  check(functions_.Version(&major, &minor), "nvrtcVersion");
  version_ = std::to_string(major) + "." + std::to_string(minor);
}

void Nvrtc::check(nvrtc::Result result, const char* function) const {
  if (result == nvrtc::kSuccess) return;
  const char* const text = functions_.GetErrorString(result);
  throw Error(ErrorCode::kUnsupported, std::string(function) + " of " + path() +
                                           " failed: " + (text != nullptr ? text : "no reason") +
                                           " (" + std::to_string(result) + ")");
}

struct Nvrtc::Attempt {
  std::string bytes;
  std::string problem;        // "" if it is compiled
  bool wrong_option = false;  // usually: this NVRTC does not know the architecture
};

// files[0] is the source. The others are headers, under the names that the #include lines use. So NVRTC reads no source from
// the disk.
Nvrtc::Attempt Nvrtc::attempt(std::span<const KernelFile> files,
                              const std::string& architecture) const {
  std::vector<const char*> texts;
  std::vector<const char*> names;
  for (const KernelFile& file : files.subspan(1)) {
    texts.push_back(file.text);
    names.push_back(file.name);
  }
  nvrtc::Program program = nullptr;
  check(functions_.CreateProgram(&program, files[0].text, files[0].name,
                                 static_cast<int>(texts.size()), texts.data(), names.data()),
        "nvrtcCreateProgram");
  // The program is destroyed on every way out, also if check() throws below.
  struct Destroy {
    const nvrtc::Functions& functions;
    nvrtc::Program* program;
    ~Destroy() { functions.DestroyProgram(program); }
  } const destroy{functions_, &program};

  const std::string option = "--gpu-architecture=" + architecture;
  std::vector<const char*> options(std::begin(kOptions), std::end(kOptions));
  options.push_back(option.c_str());
  const nvrtc::Result result =
      functions_.CompileProgram(program, static_cast<int>(options.size()), options.data());
  std::size_t size = 0;
  if (result != nvrtc::kSuccess) {
    // The log's size includes its final zero, so an empty log has the size 1. The text ends at the first zero.
    std::string log;
    if (functions_.GetProgramLogSize(program, &size) == nvrtc::kSuccess && size > 1) {
      log.resize(size);
      functions_.GetProgramLog(program, log.data());
      log.resize(std::min(log.find('\0'), log.size()));
    }
    const char* const text = functions_.GetErrorString(result);
    return {"", (text != nullptr ? text : "no reason") + (log.empty() ? log : ": " + log),
            result == nvrtc::kInvalidOption};
  }
  const bool ptx = architecture.starts_with("compute_");
  check((ptx ? functions_.GetPTXSize : functions_.GetCUBINSize)(program, &size),
        ptx ? "nvrtcGetPTXSize" : "nvrtcGetCUBINSize");
  std::string bytes(size, '\0');
  check((ptx ? functions_.GetPTX : functions_.GetCUBIN)(program, bytes.data()),
        ptx ? "nvrtcGetPTX" : "nvrtcGetCUBIN");
  return {std::move(bytes), "", false};
}

Nvrtc::Image Nvrtc::compile(std::span<const KernelFile> files, int compute_capability) const {
  std::vector<std::string> architectures{"sm_" + std::to_string(compute_capability)};
  for (const int known : kArchitectures) {
    if (known <= compute_capability) architectures.push_back("compute_" + std::to_string(known));
  }
  std::string problem;
  for (std::string& architecture : architectures) {
    Attempt done = attempt(files, architecture);
    if (done.problem.empty()) return {std::move(done.bytes), std::move(architecture)};
    problem = "NVRTC " + version_ + " (" + path() + ") for " + architecture + ": " + done.problem;
    if (!done.wrong_option) break;
  }
  throw Error(ErrorCode::kUnsupported, problem);
}

}  // namespace hvdlite::device
