// The requests of one call, filled in for the engine. Their memory may be freed after the submission.
// Thread: one. Owns: shapes, splits and the names of a loop's iteration. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernel.h"

namespace hvdlite::tensorflow {

class KernelRequests {
 public:
  KernelRequests(const Kernel& kernel, TF_OpKernelContext* context);
  KernelRequests(const KernelRequests&) = delete;
  KernelRequests& operator=(const KernelRequests&) = delete;

  hvdlite_request& operator[](std::size_t index) { return requests_[index]; }
  const hvdlite_request* data() const { return requests_.data(); }
  void set_shape(std::size_t index, const TF_Tensor* tensor);
  // Sets the splits of the only request, an alltoall, from this tensor of int32 or int64.
  void set_splits(const TF_Tensor* tensor);

 private:
  std::vector<hvdlite_request> requests_;
  std::vector<std::vector<std::int64_t>> extents_;
  std::vector<std::int64_t> splits_;
  std::vector<std::string> names_;
};

}  // namespace hvdlite::tensorflow
