#include "op_definition.h"

#include <cstring>
#include <utility>

#include "status.h"

namespace hvdlite::tensorflow {

OpDefinition::OpDefinition(std::string name, bool stateful, ShapeFunction shapes)
    : name_(std::move(name)), builder_(api().NewOpDefinitionBuilder(name_.c_str())) {
  // Whatever it is given, this function makes the op stateful.
  if (stateful) api().OpDefinitionBuilderSetIsStateful(builder_, true);
  api().OpDefinitionBuilderSetShapeInferenceFunction(builder_, shapes);
}

OpDefinition& OpDefinition::attribute(const char* specification) {
  api().OpDefinitionBuilderAddAttr(builder_, specification);
  return *this;
}

OpDefinition& OpDefinition::input(const char* name, const char* type) {
  api().OpDefinitionBuilderAddInput(builder_, (std::string(name) + ": " + type).c_str());
  arguments_.emplace_back(name);
  return *this;
}

OpDefinition& OpDefinition::output(const char* name, const char* type) {
  api().OpDefinitionBuilderAddOutput(builder_, (std::string(name) + ": " + type).c_str());
  arguments_.emplace_back(name);
  return *this;
}

void OpDefinition::enroll(const KernelFunctions& kernel) {
  const Status status;
  api().RegisterOpDefinition(std::exchange(builder_, nullptr), status);
  for (const char* device : {"CPU", "GPU"}) enroll_kernel(kernel, device);
}

void OpDefinition::enroll_kernel(const KernelFunctions& kernel, const char* device) const {
  const bool async = kernel.compute_async != nullptr && api().has_async_kernels();
  TF_KernelBuilder* builder =
      async ? api().NewAsyncKernelBuilder(name_.c_str(), device, kernel.create,
                                          kernel.compute_async, kernel.destroy)
            : api().NewKernelBuilder(name_.c_str(), device, kernel.create, kernel.compute,
                                     kernel.destroy);
  if (std::strcmp(device, "GPU") == 0) {
    for (const std::string& argument : arguments_) {
      api().KernelBuilder_HostMemory(builder, argument.c_str());
    }
  }
  const Status status;
  api().RegisterKernelBuilder(name_.c_str(), builder, status);
}

}  // namespace hvdlite::tensorflow
