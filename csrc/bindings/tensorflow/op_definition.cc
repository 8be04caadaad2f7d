#include "op_definition.h"

#include <utility>

#include "status.h"

namespace hvdlite::tensorflow {
namespace {

struct Enrolled {
  OpDefinition definition;
  KernelFunctions kernel;
};

// The ops whose GPU kernels are not registered yet.
std::vector<Enrolled>& waiting() {
  static std::vector<Enrolled> ops;
  return ops;
}

}  // namespace

OpDefinition::OpDefinition(std::string name, bool stateful, ShapeFunction shapes)
    : name_(std::move(name)), builder_(api().NewOpDefinitionBuilder(name_.c_str())) {
  // This function makes the op stateful for any value of its argument.
  if (stateful) api().OpDefinitionBuilderSetIsStateful(builder_, true);
  api().OpDefinitionBuilderSetShapeInferenceFunction(builder_, shapes);
}

OpDefinition& OpDefinition::attribute(const char* specification) {
  api().OpDefinitionBuilderAddAttr(builder_, specification);
  return *this;
}

OpDefinition& OpDefinition::input(const char* name, const char* type, ArgumentMemory place) {
  api().OpDefinitionBuilderAddInput(builder_, (std::string(name) + ": " + type).c_str());
  arguments_.push_back({name, place});
  return *this;
}

OpDefinition& OpDefinition::output(const char* name, const char* type, ArgumentMemory place) {
  api().OpDefinitionBuilderAddOutput(builder_, (std::string(name) + ": " + type).c_str());
  arguments_.push_back({name, place});
  return *this;
}

void OpDefinition::define() {
  const TfStatus status;
  api().RegisterOpDefinition(std::exchange(builder_, nullptr), status);
}

void OpDefinition::enroll(const KernelFunctions& kernel) {
  define();
  enroll_kernel(kernel, kernel.create, "CPU", false);
  waiting().push_back({*this, kernel});
}

void OpDefinition::enroll_for_gpu_memory(const KernelFunctions& kernel) {
  define();
  enroll_kernel(kernel, kernel.create_for_gpu_memory, "GPU", false);
}

void OpDefinition::enroll_kernel(const KernelFunctions& kernel, CreateFunction create,
                                 const char* device, bool all_on_host) const {
  const bool async = kernel.compute_async != nullptr && api().has_async_kernels();
  TF_KernelBuilder* builder =
      async ? api().NewAsyncKernelBuilder(name_.c_str(), device, create, kernel.compute_async,
                                          kernel.destroy)
            : api().NewKernelBuilder(name_.c_str(), device, create, kernel.compute, kernel.destroy);
  for (const auto& [name, place] : arguments_) {
    if (all_on_host || place == ArgumentMemory::kHost) {
      api().KernelBuilder_HostMemory(builder, name.c_str());
    }
  }
  const TfStatus status;
  api().RegisterKernelBuilder(name_.c_str(), builder, status);
}

void enroll_gpu_kernels(bool gpu_memory) {
  for (const auto& [definition, kernel] : std::exchange(waiting(), {})) {
    const bool can = gpu_memory && kernel.create_for_gpu_memory != nullptr;
    definition.enroll_kernel(kernel, can ? kernel.create_for_gpu_memory : kernel.create, "GPU",
                             /*all_on_host=*/!can);
  }
}

}  // namespace hvdlite::tensorflow
