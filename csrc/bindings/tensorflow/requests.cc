#include "requests.h"

#include <algorithm>
#include <limits>

namespace hvdlite::tensorflow {

KernelRequests::KernelRequests(const Kernel& kernel, TF_OpKernelContext* context) {
  const std::vector<hvdlite_request>& requests = kernel.requests();
  if (requests.size() == 1) {
    one_ = requests[0];
  } else {
    more_ = requests;
    extents_.resize(more_.size());
  }
  if (!kernel.is_named() || api().GetIterId == nullptr) return;
  // Iterations of a loop may overlap, and other ranks may run them in another order, so each has its own names.
  const std::int64_t iteration = api().GetIterId(context);
  if (iteration == 0) return;
  names_ = kernel.names_in_iteration(iteration);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    data()[i].name = names_[i].c_str();
    if (kernel.is_grouped()) data()[i].group = names_.back().c_str();
  }
}

void KernelRequests::set_shape(std::size_t index, const TF_Tensor* tensor) {
  const int ndim = api().NumDims(tensor);
  std::int64_t* extents = extents_of_one_;
  if (!more_.empty()) {
    extents_[index].resize(static_cast<std::size_t>(ndim));
    extents = extents_[index].data();
  }
  for (int axis = 0; axis < ndim; ++axis) extents[axis] = api().Dim(tensor, axis);
  data()[index].ndim = ndim;
  data()[index].shape = extents;
}

void KernelRequests::set_splits(const TF_Tensor* tensor) {
  constexpr DataType kInt32 = 3;
  const auto count = static_cast<std::size_t>(api().Dim(tensor, 0));
  const void* values = api().TensorData(tensor);
  splits_.resize(count);
  if (api().TensorType(tensor) == kInt32) {
    std::copy_n(static_cast<const std::int32_t*>(values), count, splits_.begin());
  } else {
    std::copy_n(static_cast<const std::int64_t*>(values), count, splits_.begin());
  }
  one_.splits = splits_.data();
  one_.num_splits = static_cast<std::int32_t>(count);
  // The engine sees only the rows within the splits. It checks the splits itself.
  std::int64_t sum = 0;
  for (const std::int64_t rows : splits_) {
    if (rows < 0) return;
    sum += std::min(rows, std::numeric_limits<std::int64_t>::max() - sum);  // does not overflow
  }
  if (one_.ndim > 0 && sum < extents_of_one_[0]) extents_of_one_[0] = sum;
}

}  // namespace hvdlite::tensorflow
