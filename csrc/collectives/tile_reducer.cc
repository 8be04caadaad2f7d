#include "collectives/tile_reducer.h"

#include <algorithm>
#include <cstring>

#include "collectives/reducer.h"
#include "kernels/stream.h"

namespace hvdlite::collectives {

namespace {

constexpr std::size_t kScratchBytes =
    8 * 1024;  // stays in the L1 cache together with the folded elements

}  // namespace

TileReducer::TileReducer(const Reduction& reduction, kernels::Isa isa)
    : reduction_(reduction),
      kernels_(&kernels::reduce_kernels(reduction.dtype, reduction.op, isa)),
      result_bytes_(base::size_of(reduction.dtype)),
      partial_bytes_(base::size_of(kernels_->accumulator)),
      contribution_bytes_(result_bytes_),
      same_type_(kernels_->accumulator == reduction.dtype),
      scaled_(!identity_survives(reduction)) {
  if (scaled_) contribution_bytes_ = partial_bytes_;
}

void TileReducer::contribute(std::byte* tile, const void* input, std::size_t n,
                             bool streaming) const {
  if (input == nullptr && (scaled_ || same_type_)) {
    kernels_->fill_identity(tile, n);
  } else if (input == nullptr) {
    alignas(64) std::byte identity[kScratchBytes];
    const std::size_t block = std::min(kScratchBytes / partial_bytes_, n);
    kernels_->fill_identity(identity, block);
    for (std::size_t done = 0; done < n; done += block) {
      kernels_->store(tile + done * result_bytes_, identity, std::min(block, n - done), 1.0, 1);
    }
  } else if (scaled_) {
    kernels_->load(tile, input, n, reduction_.prescale);
  } else if (input != tile) {
    kernels::copy(tile, input, n * result_bytes_, streaming);
  }
}

void TileReducer::fold(void* const* out, int num_out, const void* const* in, int num_in,
                       std::size_t n) const {
  if (!scaled_) {
    kernels_->fold(out, num_out, in, num_in, n, reduction_.prescale, reduction_.postscale,
                   reduction_.divisor);
    return;
  }
  alignas(64) std::byte partial[kScratchBytes];
  const std::size_t block = kScratchBytes / partial_bytes_;
  for (std::size_t done = 0; done < n; done += block) {
    const std::size_t count = std::min(block, n - done);
    for (int i = 0; i < num_in; ++i) {
      const std::byte* const next =
          static_cast<const std::byte*>(in[i]) + done * contribution_bytes_;
      if (i == 0) {
        std::memcpy(partial, next, count * partial_bytes_);
      } else {
        kernels_->combine(partial, partial, next, count);
      }
    }
    for (int i = 0; i < num_out; ++i) {
      kernels_->store(static_cast<std::byte*>(out[i]) + done * result_bytes_, partial, count,
                      reduction_.postscale, reduction_.divisor);
    }
  }
}

void TileReducer::fold_partial(void* partial, const void* const* in, int num_in,
                               std::size_t n) const {
  if (same_type_ && !scaled_) {
    kernels_->fold(&partial, 1, in, num_in, n, reduction_.prescale, 1.0, 1);
    return;
  }
  const std::size_t block = kScratchBytes / partial_bytes_;
  for (std::size_t done = 0; done < n; done += block) {
    const std::size_t count = std::min(block, n - done);
    std::byte* const out = static_cast<std::byte*>(partial) + done * partial_bytes_;
    for (int i = 0; i < num_in; ++i) {
      const std::byte* const next =
          static_cast<const std::byte*>(in[i]) + done * contribution_bytes_;
      if (scaled_ && i == 0) {
        std::memcpy(out, next, count * partial_bytes_);
      } else if (scaled_) {
        kernels_->combine(out, out, next, count);
      } else if (i == 0) {
        kernels_->load(out, next, count, reduction_.prescale);
      } else {
        kernels_->accumulate(out, next, count, reduction_.prescale);
      }
    }
  }
}

}  // namespace hvdlite::collectives
