// Defines an op and registers its kernels.
// Thread: the one that loads the library. Owns: nothing that lasts. Blocks: no. Throws: nothing.
//
// Kernels for GPUs take and give tensors in host memory: TensorFlow copies between the device and the host, and waits for the
// device before the kernel runs. (This has been run without a GPU only.)
#pragma once

#include <string>
#include <vector>

#include "tf_api.h"

namespace hvdlite::tensorflow {

struct KernelFunctions {
  CreateFunction create;
  ComputeFunction compute;
  ComputeAsyncFunction compute_async;  // null: the op needs no waiting
  DeleteFunction destroy;
};

class OpDefinition {
 public:
  OpDefinition(std::string name, bool stateful, ShapeFunction shapes);

  OpDefinition& attribute(const char* specification);
  OpDefinition& input(const char* name, const char* type);
  OpDefinition& output(const char* name, const char* type);
  // What was said is handed to TensorFlow, which reports the op's problems when the library is loaded.
  void enroll(const KernelFunctions& kernel);

 private:
  void enroll_kernel(const KernelFunctions& kernel, const char* device) const;

  std::string name_;
  TF_OpDefinitionBuilder* builder_;
  std::vector<std::string> arguments_;  // names of inputs and outputs
};

}  // namespace hvdlite::tensorflow
