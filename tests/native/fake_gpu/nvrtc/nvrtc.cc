// A fake NVRTC: checks what it is given and makes an image that names the kernels it finds in the source; the fake driver runs
// these kernels from what the host's compiler made of the same source.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "driver/kernels.h"
#include "world.h"

namespace {

enum NvrtcResult : int {
  kSuccess = 0,
  kInvalidInput = 3,
  kInvalidProgram = 4,
  kInvalidOption = 5,
  kCompilation = 6,
};
constexpr int kArchitectures[] = {75, 80, 86, 89, 90, 100, 120};

struct Program {
  std::string source;
  std::string log;
  std::string image;
  bool compiled = false;
  bool binary = false;  // for a GPU (sm_90) or as PTX (compute_90)?
};

std::map<void*, std::unique_ptr<Program>>& programs() {
  static auto& all = *new std::map<void*, std::unique_ptr<Program>>;
  return all;
}

Program* find(void* handle) {
  const auto found = programs().find(handle);
  return found == programs().end() ? nullptr : found->second.get();
}

// The value of --gpu-architecture=VALUE (or -arch=VALUE); "" where the option is another.
std::string architecture_of(const std::string& option) {
  for (const char* prefix : {"--gpu-architecture=", "-arch=", "--gpu-architecture ", "-arch "}) {
    if (option.rfind(prefix, 0) == 0) return option.substr(std::strlen(prefix));
  }
  return "";
}

// That of the CUDA it belongs to: a copy of this library under the name libnvrtc.so.13 is of 13.0, this one of the driver's.
int own_version() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_version), &info) != 0) {
    const char* const end = std::strstr(info.dli_fname, ".so.");
    if (end != nullptr) return 1000 * std::atoi(end + 4);
  }
  return fake::settings().driver_version;
}

bool known(const std::string& architecture) {
  for (const int number : kArchitectures) {
    for (const char* kind : {"sm_", "compute_"}) {
      if (architecture.rfind(kind + std::to_string(number), 0) == 0) return true;
    }
  }
  return false;
}

int compile(Program& program, int count, const char* const* options) {
  std::string architecture = "compute_75";
  for (int i = 0; i < count; ++i) {
    if (options[i][0] != '-') {
      program.log = std::string("unrecognized option ") + options[i] + " found\n";
      return kInvalidOption;
    }
    const std::string found = architecture_of(options[i]);
    if (!found.empty()) architecture = found;
  }
  if (!known(architecture)) {
    program.log = "invalid value for --gpu-architecture: " + architecture + "\n";
    return kInvalidOption;
  }
  program.binary = architecture.rfind("sm_", 0) == 0;
  program.image = fake::kImageMark;
  bool any = false;
  for (const fake::HostKernel& kernel : fake::host_kernels()) {
    if (program.source.find(kernel.name) == std::string::npos) continue;
    program.image += std::string(kernel.name) + "\n";
    any = true;
  }
  program.image += "for " + architecture + "\n";
  program.image += fake::kImageCuda + std::to_string(own_version()) + "\n";
  program.compiled = any;
  if (!any) program.log = "the fake NVRTC knows no kernel of this source\n";
  return any ? kSuccess : kCompilation;
}

int give_size(void* handle, bool wanted, std::size_t* size) {
  const Program* program = find(handle);
  if (program == nullptr || !program->compiled) return kInvalidProgram;
  *size = wanted ? program->image.size() + 1 : 0;
  return kSuccess;
}

int give(void* handle, bool wanted, char* image) {
  const Program* program = find(handle);
  if (program == nullptr || !program->compiled) return kInvalidProgram;
  if (wanted) std::memcpy(image, program->image.c_str(), program->image.size() + 1);
  return kSuccess;
}

std::string leaks() {
  return programs().empty() ? "" : std::to_string(programs().size()) + " NVRTC programs\n";
}

fake::Companion companion = {leaks, [] { programs().clear(); }};
[[maybe_unused]] const bool known_to_the_world = (fake::make_known(companion), true);

bool binary(void* handle) { return find(handle) != nullptr && find(handle)->binary; }

}  // namespace

#define ENTER(name) \
  FAKE_ENTER(name); \
  fake::Lock lock(fake::world().mutex)

FAKE_EXPORT int nvrtcVersion(int* major, int* minor) {
  ENTER("nvrtcVersion");
  *major = own_version() / 1000;
  *minor = own_version() % 1000 / 10;
  return kSuccess;
}

FAKE_EXPORT int nvrtcGetNumSupportedArchs(int* count) {
  ENTER("nvrtcGetNumSupportedArchs");
  *count = static_cast<int>(std::size(kArchitectures));
  return kSuccess;
}

FAKE_EXPORT int nvrtcGetSupportedArchs(int* architectures) {
  ENTER("nvrtcGetSupportedArchs");
  std::memcpy(architectures, kArchitectures, sizeof(kArchitectures));
  return kSuccess;
}

FAKE_EXPORT int nvrtcCreateProgram(void** handle, const char* source, const char*, int headers,
                                   const char* const* texts, const char* const* names) {
  ENTER("nvrtcCreateProgram");
  if (handle == nullptr || source == nullptr || headers < 0) return kInvalidInput;
  if (headers > 0 && (texts == nullptr || names == nullptr)) return kInvalidInput;
  auto program = std::make_unique<Program>();
  program->source = source;
  for (int i = 0; i < headers; ++i) program->source += texts[i];
  *handle = program.get();
  programs()[program.get()] = std::move(program);
  return kSuccess;
}

FAKE_EXPORT int nvrtcCompileProgram(void* handle, int count, const char* const* options) {
  ENTER("nvrtcCompileProgram");
  Program* program = find(handle);
  return program == nullptr ? static_cast<int>(kInvalidProgram) : compile(*program, count, options);
}

FAKE_EXPORT int nvrtcGetCUBINSize(void* handle, std::size_t* size) {
  ENTER("nvrtcGetCUBINSize");
  return give_size(handle, binary(handle), size);
}

FAKE_EXPORT int nvrtcGetCUBIN(void* handle, char* image) {
  ENTER("nvrtcGetCUBIN");
  return give(handle, binary(handle), image);
}

FAKE_EXPORT int nvrtcGetPTXSize(void* handle, std::size_t* size) {
  ENTER("nvrtcGetPTXSize");
  return give_size(handle, true, size);
}

FAKE_EXPORT int nvrtcGetPTX(void* handle, char* image) {
  ENTER("nvrtcGetPTX");
  return give(handle, true, image);
}

FAKE_EXPORT int nvrtcGetProgramLogSize(void* handle, std::size_t* size) {
  ENTER("nvrtcGetProgramLogSize");
  const Program* program = find(handle);
  if (program == nullptr) return kInvalidProgram;
  *size = program->log.size() + 1;
  return kSuccess;
}

FAKE_EXPORT int nvrtcGetProgramLog(void* handle, char* log) {
  ENTER("nvrtcGetProgramLog");
  const Program* program = find(handle);
  if (program == nullptr) return kInvalidProgram;
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return kSuccess;
}

FAKE_EXPORT int nvrtcDestroyProgram(void** handle) {
  const int injected = fake::enter("nvrtcDestroyProgram");
  fake::Lock lock(fake::world().mutex);
  if (handle == nullptr || programs().erase(*handle) == 0) return kInvalidProgram;
  *handle = nullptr;
  return injected;
}

FAKE_EXPORT const char* nvrtcGetErrorString(int result) {
  switch (result) {
    case kSuccess:
      return "NVRTC_SUCCESS";
    case kInvalidInput:
      return "NVRTC_ERROR_INVALID_INPUT";
    case kInvalidProgram:
      return "NVRTC_ERROR_INVALID_PROGRAM";
    case kInvalidOption:
      return "NVRTC_ERROR_INVALID_OPTION";
    case kCompilation:
      return "NVRTC_ERROR_COMPILATION";
    default:
      return "NVRTC_ERROR unknown";
  }
}
