#include "requests.h"

#include <algorithm>
#include <limits>

namespace hvdlite::tensorflow {

KernelRequests::KernelRequests(const Kernel& kernel, TF_OpKernelContext* context)
    : requests_(kernel.requests()), extents_(requests_.size()) {
  if (!kernel.is_named() || api().GetIterId == nullptr) return;
  // Iterations of a loop may overlap, and other ranks may run them in another order, so each has its own names.
  const std::int64_t iteration = api().GetIterId(context);
  if (iteration == 0) return;
  names_ = kernel.names_in_iteration(iteration);
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    requests_[i].name = names_[i].c_str();
    if (kernel.is_grouped()) requests_[i].group = names_.back().c_str();
  }
}

void KernelRequests::set_shape(std::size_t index, const TF_Tensor* tensor) {
  std::vector<std::int64_t>& extents = extents_[index];
  extents.resize(static_cast<std::size_t>(api().NumDims(tensor)));
  for (std::size_t axis = 0; axis < extents.size(); ++axis) {
    extents[axis] = api().Dim(tensor, static_cast<int>(axis));
  }
  requests_[index].ndim = static_cast<std::int32_t>(extents.size());
  requests_[index].shape = extents.data();
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
  requests_[0].splits = splits_.data();
  requests_[0].num_splits = static_cast<std::int32_t>(count);
  // The engine gets only the rows that the splits cover. It refuses negative splits itself.
  std::int64_t sum = 0;
  for (const std::int64_t rows : splits_) {
    if (rows < 0) return;
    sum += std::min(rows, std::numeric_limits<std::int64_t>::max() - sum);  // does not overflow
  }
  std::vector<std::int64_t>& extents = extents_[0];
  if (!extents.empty()) extents[0] = std::min(extents[0], sum);
}

}  // namespace hvdlite::tensorflow
