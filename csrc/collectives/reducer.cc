#include "collectives/reducer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/stream.h"

namespace hvdlite::collectives {

using base::DType;
using base::ReduceOp;

bool identity_survives(const Reduction& reduction) {
  if (reduction.own_prescale) return false;
  if (reduction.prescale == 1.0) return true;
  const bool sums = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage;
  return sums && std::isfinite(reduction.prescale) && reduction.prescale > 0.0;
}

ElementReducer::ElementReducer(const Reduction& reduction, kernels::Isa isa, const void* input,
                               std::size_t count, std::size_t limit)
    : reduction_(reduction),
      kernels_(&kernels::reduce_kernels(reduction.dtype, reduction.op, isa)),
      input_(static_cast<const std::byte*>(input)),
      count_(count),
      limit_(std::min(limit, count)),
      result_bytes_(base::size_of(reduction.dtype)),
      partial_bytes_(base::size_of(kernels_->accumulator)),
      contribution_bytes_(result_bytes_),
      prescale_(reduction.prescale),
      same_type_(kernels_->accumulator == reduction.dtype),
      plain_(same_type_ && reduction.prescale == 1.0),
      nothing_to_do_(same_type_ && reduction.postscale == 1.0 && reduction.divisor == 1 &&
                     reduction.dtype != DType::kBool) {
  if (reduction.from_partials) {
    HVD_CHECK(input != nullptr || count == 0);
  } else if (!identity_survives(reduction)) {
    scale_into_copy(input);
  } else {
    if (input == nullptr) make_identity();
    return;
  }
  contribution_bytes_ = partial_bytes_;
  prescale_ = 1.0;
  plain_ = true;
  contributions_are_elements_ = same_type_;
}

void ElementReducer::scale_into_copy(const void* input) {
  copy_.resize(count_ * partial_bytes_);
  if (input != nullptr) {
    kernels_->load(copy_.data(), input, count_, prescale_);
  } else {
    kernels_->fill_identity(copy_.data(), count_);
  }
  input_ = copy_.data();
}

void ElementReducer::make_identity() {
  std::vector<std::byte> partial(limit_ * partial_bytes_);
  kernels_->fill_identity(partial.data(), limit_);
  copy_.resize(limit_ * result_bytes_);
  kernels_->store(copy_.data(), partial.data(), limit_, 1.0, 1);
  input_ = copy_.data();
  identity_ = true;
}

const std::byte* ElementReducer::own(std::size_t offset) const {
  return identity_ ? input_ : input_ + offset * contribution_bytes_;
}

void ElementReducer::load(void* partial, const void* contribution, std::size_t n) const {
  if (plain_) {
    if (n > 0) std::memcpy(partial, contribution, n * partial_bytes_);
  } else {
    kernels_->load(partial, contribution, n, prescale_);
  }
}

void ElementReducer::begin(void* partial, const void* first, const void* second,
                           std::size_t n) const {
  if (plain_) {
    kernels_->combine(partial, first, second, n);
  } else {
    kernels_->load(partial, first, n, prescale_);
    kernels_->accumulate(partial, second, n, prescale_);
  }
}

void ElementReducer::add(void* partial, const void* contribution, std::size_t n) const {
  if (plain_) {
    kernels_->combine(partial, partial, contribution, n);
  } else {
    kernels_->accumulate(partial, contribution, n, prescale_);
  }
}

void ElementReducer::merge(void* out, const void* lhs, const void* rhs, std::size_t n) const {
  kernels_->combine(out, lhs, rhs, n);
}

void ElementReducer::finish(void* result, const void* partial, std::size_t n) const {
  if (!nothing_to_do_) {
    kernels_->store(result, partial, n, reduction_.postscale, reduction_.divisor);
  } else if (result != partial && n > 0) {
    kernels::plain_copy(result, partial, n * result_bytes_);
  }
}

void ElementReducer::begin_and_finish(void* result, void* partial, const void* first,
                                      const void* second, std::size_t n) const {
  if (contributions_are_elements_) {
    const void* const both[] = {first, second};
    kernels_->fold(&result, 1, both, 2, n, prescale_, reduction_.postscale, reduction_.divisor);
  } else {
    begin(partial, first, second, n);
    finish(result, partial, n);
  }
}

void ElementReducer::add_and_finish(void* result, void* partial, const void* contribution,
                                    std::size_t n) const {
  if (plain_ && same_type_) {
    const void* const both[] = {partial, contribution};
    kernels_->fold(&result, 1, both, 2, n, 1.0, reduction_.postscale, reduction_.divisor);
  } else {
    add(partial, contribution, n);
    finish(result, partial, n);
  }
}

void ElementReducer::finish_alone(void* result) const {
  auto* out = static_cast<std::byte*>(result);
  const std::size_t step = std::max<std::size_t>(limit_, 1);
  for (std::size_t done = 0; done < count_; done += step) {
    const std::size_t n = std::min(step, count_ - done);
    void* const place = out + done * result_bytes_;
    const void* const contribution = own(done);
    if (plain_) {
      finish(place, contribution, n);
    } else {
      kernels_->fold(&place, 1, &contribution, 1, n, prescale_, reduction_.postscale,
                     reduction_.divisor);
    }
  }
}

}  // namespace hvdlite::collectives
