// Modules and kernels: fake NVRTC's images are taken, and real ones where a test says so.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver/kernels.h"
#include "driver/memory.h"
#include "world.h"

namespace fake {
namespace {

// Is the image of a CUDA of a later major version than the driver's?
bool is_too_new(const std::string& image) {
  const std::size_t at = image.find(kImageCuda);
  if (at == std::string::npos) return false;
  return std::atoi(image.c_str() + at + std::strlen(kImageCuda)) / 1000 >
         settings().driver_version / 1000;
}

bool is_fat_binary(const void* image) {
  std::uint32_t word = 0;
  std::memcpy(&word, image, sizeof(word));
  return word == 0xba55ed50u || word == 0x466243b1u ||
         word == 0x464c457fu;  // fatbin, its wrapper, ELF
}

Result run_kernel(const HostKernel& kernel, const Dim3& grid, const Dim3& block,
                  const std::vector<std::vector<char>>& values) {
  std::vector<void*> parameters;
  for (const std::vector<char>& value : values)
    parameters.push_back(const_cast<char*>(value.data()));
  {
    const OpenMemory open;
    run_grid(kernel, grid, block, parameters.data());
  }
  const std::string damage = damaged();
  if (damage.empty()) return cuda::kSuccess;
  std::fprintf(stderr, "fake GPU: after the kernel %s: %s", kernel.name, damage.c_str());
  return kIllegalAddress;
}

}  // namespace
}  // namespace fake

using fake::Lock;
using fake::world;
using fake::cuda::Result;

FAKE_EXPORT Result cuModuleLoadData(fake::cuda::Module* module, const void* image) {
  FAKE_ENTER("cuModuleLoadData");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  if (const Result error = fake::current(&context)) return error;
  if (module == nullptr || image == nullptr) return fake::kInvalidValue;
  std::string text;
  if (std::memcmp(image, fake::kImageMark, sizeof(fake::kImageMark) - 1) == 0) {
    text = static_cast<const char*>(image);
    if (fake::is_too_new(text)) return fake::cuda::kUnsupportedPtxVersion;
  } else if (!fake::is_fat_binary(image)) {
    return fake::kInvalidImage;
  } else if (!fake::settings().fat_binaries) {
    return fake::cuda::kNoBinaryForGpu;
  } else {
    for (const auto& kernel : fake::host_kernels()) text += std::string(kernel.name) + "\n";
  }
  auto* handle = new char;
  world().modules[handle] = text;
  *module = reinterpret_cast<fake::cuda::Module>(handle);
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuModuleUnload(fake::cuda::Module module) {
  const int injected = fake::fail(fake::enter("cuModuleUnload"));
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  const Result error = fake::current(&context);
  if (context == nullptr) return error;
  if (world().modules.erase(module) == 0) return fake::kInvalidHandle;
  delete reinterpret_cast<char*>(module);
  return injected != 0 ? injected : error;
}

FAKE_EXPORT Result cuModuleGetFunction(fake::cuda::Function* function, fake::cuda::Module module,
                                       const char* name) {
  FAKE_ENTER("cuModuleGetFunction");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  if (const Result error = fake::current(&context)) return error;
  const auto found = world().modules.find(module);
  if (found == world().modules.end()) return fake::kInvalidHandle;
  const fake::HostKernel* kernel = fake::find_kernel(name);
  if (kernel == nullptr || found->second.find(std::string(name) + "\n") == std::string::npos) {
    return fake::kNotFound;
  }
  *function = reinterpret_cast<fake::cuda::Function>(const_cast<fake::HostKernel*>(kernel));
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuLaunchKernel(fake::cuda::Function function, unsigned grid_x, unsigned grid_y,
                                  unsigned grid_z, unsigned block_x, unsigned block_y,
                                  unsigned block_z, unsigned shared_bytes,
                                  fake::cuda::Stream handle, void** parameters, void** extra) {
  FAKE_ENTER("cuLaunchKernel");
  Lock lock(world().mutex);
  fake::Context* context = nullptr;
  if (const Result error = fake::current(&context)) return error;
  fake::Stream* stream = nullptr;
  if (const Result error = fake::find_stream(handle, context, &stream)) return error;
  if (stream->context != context || function == nullptr) return fake::kInvalidHandle;
  const fake::Dim3 grid{grid_x, grid_y, grid_z};
  const fake::Dim3 block{block_x, block_y, block_z};
  const std::uint64_t threads = std::uint64_t{block_x} * block_y * block_z;
  const bool grid_fits = grid_x > 0 && grid_y > 0 && grid_z > 0 && grid_x <= 0x7fffffffu &&
                         grid_y <= 65535 && grid_z <= 65535;
  if (!grid_fits || threads == 0 || threads > 1024 || block_z > 64 || shared_bytes != 0 ||
      extra != nullptr) {
    return fake::kInvalidValue;
  }
  const auto* kernel = reinterpret_cast<const fake::HostKernel*>(function);
  std::vector<std::vector<char>> values;
  for (std::size_t i = 0; i < kernel->parameters.size(); ++i) {
    const char* value = static_cast<const char*>(parameters[i]);
    values.emplace_back(value, value + kernel->parameters[i]);
  }
  fake::Operation operation;
  operation.what = kernel->name;
  operation.run = [=] { return fake::run_kernel(*kernel, grid, block, values); };
  fake::enqueue(*stream, std::move(operation));
  return fake::cuda::kSuccess;
}

// For tests: the image that fake NVRTC would make of all kernels there are.
FAKE_EXPORT const char* fake_image() {
  static const std::string* const image = [] {
    auto* text = new std::string(fake::kImageMark);
    for (const auto& kernel : fake::host_kernels()) *text += std::string(kernel.name) + "\n";
    return text;
  }();
  return image->c_str();
}
