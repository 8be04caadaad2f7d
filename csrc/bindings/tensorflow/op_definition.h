// Defines an op and registers its kernels.
// Thread: the one that loads the library; later one that calls enroll_gpu_kernels(). Owns: nothing that lasts, except the list
// of ops that wait for that call. Blocks: no. Throws: nothing.
//
// Kernels for the host are registered at once, those for GPUs by enroll_gpu_kernels(). By then it is known whether they can
// work in GPU memory (gpu_stream.h). If not, they take and return tensors in host memory: TensorFlow copies between device and
// host, and waits for the device before the kernel runs. The stream's self-test decides this, so its kernel is registered at
// once.
#pragma once

#include <string>
#include <vector>

#include "tf_api.h"

namespace hvdlite::tensorflow {

struct KernelFunctions {
  CreateFunction create;  // null, and so is destroy: the kernel has no state
  ComputeFunction compute;
  ComputeAsyncFunction compute_async;  // null: the op needs no waiting
  DeleteFunction destroy;
  CreateFunction create_for_gpu_memory = nullptr;  // null: all its tensors are in host memory
};

// The memory of an argument, for a kernel that works in GPU memory.
enum class ArgumentMemory { kDevice, kHost };

class OpDefinition {
 public:
  OpDefinition(std::string name, bool stateful, ShapeFunction shapes);

  OpDefinition& attribute(const char* specification);
  OpDefinition& input(const char* name, const char* type,
                      ArgumentMemory place = ArgumentMemory::kDevice);
  OpDefinition& output(const char* name, const char* type,
                       ArgumentMemory place = ArgumentMemory::kDevice);
  // Registers the definition and the kernel for the host. TensorFlow reports problems of the definition when the library is
  // loaded.
  void enroll(const KernelFunctions& kernel);
  // Registers the definition and the kernel for GPUs of an op that has no other kernel.
  void enroll_for_gpu_memory(const KernelFunctions& kernel);

 private:
  struct Argument {
    std::string name;
    ArgumentMemory place;
  };
  friend void enroll_gpu_kernels(bool gpu_memory);
  void define();
  void enroll_kernel(const KernelFunctions& kernel, CreateFunction create, const char* device,
                     bool all_on_host) const;

  std::string name_;
  TF_OpDefinitionBuilder* builder_;
  std::vector<Argument> arguments_;  // inputs and outputs
};

// Registers the GPU kernels of all ops enrolled so far. gpu_memory: kernels that can work in GPU memory do so.
void enroll_gpu_kernels(bool gpu_memory);

}  // namespace hvdlite::tensorflow
