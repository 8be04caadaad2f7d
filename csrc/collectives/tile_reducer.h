// The arithmetic of one reduction over tiles in shared memory: contributions go into a tile, and are
// folded from the members' tiles into results.
//
// A contribution lies in a tile as the user's type T, and the rank that folds it applies prescale; an absent rank's
// contribution is the identity of the op. This is correct only if prescale does not change the identity (reducer.h). In the
// other cases (scaled()), which are rare, every rank scales its contribution into the tile, where it lies as the accumulator
// type A, and folding uses scratch memory that stays in the L1 cache.
//
// In both cases an element is contribution 0 op contribution 1 op contribution 2 ..., computed in A. Then postscale and divisor
// are applied, and the result is rounded to T once. These are the bits of reducescatter_direct and allreduce_direct.
//
// Thread: the holder of the progress token. Owns: nothing. Blocks: no.
// Throws: Error(Unsupported) from the look-up of the kernels.
#pragma once

#include <cstddef>

#include "collectives/collective.h"

namespace hvdlite::collectives {

class TileReducer {
 public:
  TileReducer(const Reduction& reduction, kernels::Isa isa);

  std::size_t result_bytes() const { return result_bytes_; }  // of one element, as the next two
  std::size_t partial_bytes() const { return partial_bytes_; }
  std::size_t contribution_bytes() const { return contribution_bytes_; }
  // True: the user's input cannot be folded where it lies, but must be put into a tile first (contribute).
  bool scaled() const { return scaled_; }

  // Puts n elements of this rank's contribution into a tile; a null input contributes the identity. streaming: writes past the
  // caches, if the elements are only copied.
  void contribute(std::byte* tile, const void* input, std::size_t n, bool streaming = false) const;

  // Folds num_in contributions in this order, and stores the result num_out times. An output may begin where an input begins.
  void fold(void* const* out, int num_out, const void* const* in, int num_in, std::size_t n) const;
  // Folds the contributions into a partial: of type A, without postscale and divisor. The partial overlaps no input.
  void fold_partial(void* partial, const void* const* in, int num_in, std::size_t n) const;

 private:
  Reduction reduction_;
  const kernels::ReduceKernels* kernels_;
  std::size_t result_bytes_;
  std::size_t partial_bytes_;
  std::size_t contribution_bytes_;
  bool same_type_;  // T is A
  bool scaled_;
};

}  // namespace hvdlite::collectives
