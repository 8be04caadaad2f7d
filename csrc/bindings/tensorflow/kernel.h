// A collective op of a graph (or of eager mode, where TensorFlow keeps kernels as well), with its attributes parsed once.
// Thread: one makes it, then any may read it. Owns: its names. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hvdlite/hvdlite.h"
#include "tf_api.h"

namespace hvdlite::tensorflow {

class Kernel {
 public:
  // What an op's name says about it.
  struct Form {
    std::int32_t kind;  // HVDLITE_ALLREDUCE...
    bool grouped = false;
    bool weighted = false;  // an allreduce with this rank's weight as an input after the tensors
  };

  // Reports an error of the construction to TensorFlow. on_gpu: the tensors are in GPU memory.
  Kernel(const Form& form, bool on_gpu, TF_OpKernelConstruction* construction);
  Kernel(const Kernel&) = delete;  // the requests point to the names
  Kernel& operator=(const Kernel&) = delete;

  std::int32_t kind() const { return form_.kind; }
  // One request for each tensor. They lack the shape and the addresses, and on a GPU the GPU and the stream.
  const std::vector<hvdlite_request>& requests() const { return requests_; }
  bool has_splits() const { return has_splits_; }
  // Does compute wait for the end? In eager mode TensorFlow waits for the op anyway, and a thread that waits in compute drives
  // the engine itself.
  bool blocks() const { return blocks_; }
  // The names for this iteration of a loop, in the order of the kernel's names: of the tensors, and then of the group.
  std::vector<std::string> names_in_iteration(std::int64_t iteration) const;
  bool is_grouped() const { return form_.grouped; }
  bool is_weighted() const { return form_.weighted; }
  bool is_named() const { return !names_.empty(); }
  bool is_on_gpu() const { return on_gpu_; }

 private:
  class Attributes;
  std::vector<std::int32_t> parse_dtypes(const Attributes& attributes) const;
  void parse_names(const Attributes& attributes, std::size_t count);

  Form form_;
  bool on_gpu_;
  bool has_splits_ = false;
  bool blocks_ = false;
  std::vector<std::string> names_;  // of the tensors, and then of the group, if there is one
  std::vector<hvdlite_request> requests_;
};

}  // namespace hvdlite::tensorflow
