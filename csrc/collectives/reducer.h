// The arithmetic of one reduction as an algorithm sees it: contributions, partials and results.
//
// contribution: one rank's elements before anything is added to them. They travel in the user's type T, straight from the
//     user's input, and the rank that adds them applies prescale.
// partial: the op over the contributions of some ranks, with prescale applied, of the accumulator type A (float32 for 16-bit
//     floats, 64-bit integers for an integer Average, else T).
// result: of type T, postscale and divisor applied, rounded once.
//
// An absent rank (null input) contributes the identity of the op. The identity may travel as T only if prescale does not change
// it. This holds for prescale 1, and for Sum and Average with any finite positive prescale, because their identity is 0. In all
// other cases every rank first scales its input into a copy of type A, and contributions travel as A. This costs a pass, but
// Min, Max and Product with a prescale are rare. Ranks with different prescales (own_prescale) do the same.
//
// With Reduction::from_partials contributions are partials from the beginning.
//
// Thread: the holder of the progress token. Owns: its copy of identities or of the scaled input; otherwise it borrows the
// input. Blocks: no. Throws: Error(Unsupported) from the look-up of the kernels.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/collective.h"

namespace hvdlite::collectives {

// May the op's identity travel as T: do all ranks have the same prescale, and does it leave the identity unchanged (see above)?
bool identity_survives(const Reduction& reduction);

class ElementReducer {
 public:
  // count: of the input's elements; limit: the most elements that a caller reads from one result of own().
  ElementReducer(const Reduction& reduction, kernels::Isa isa, const void* input, std::size_t count,
                 std::size_t limit);
  ElementReducer(ElementReducer&&) = default;  // not copied: input_ may point into copy_

  std::size_t result_bytes() const { return result_bytes_; }  // of one element, as the next two
  std::size_t partial_bytes() const { return partial_bytes_; }
  std::size_t contribution_bytes() const { return contribution_bytes_; }
  // Contributions are partials too: of type A, nothing left to scale.
  bool contributions_are_partials() const { return plain_; }

  // This rank's contribution from element `offset` on.
  const std::byte* own(std::size_t offset) const;

  // partial = contribution
  void load(void* partial, const void* contribution, std::size_t n) const;
  // partial = first op second, both contributions; partial may be one of them if they are partials
  void begin(void* partial, const void* first, const void* second, std::size_t n) const;
  // partial = partial op contribution
  void add(void* partial, const void* contribution, std::size_t n) const;
  // out = lhs op rhs, all partials; out may be lhs or rhs
  void merge(void* out, const void* lhs, const void* rhs, std::size_t n) const;
  // result = finished partial; result may be partial if the types agree
  void finish(void* result, const void* partial, std::size_t n) const;

  // begin (or add), followed by finish, in one pass if the types allow it. Afterwards the content of `partial` is undefined.
  // result may be the place of this rank's own contribution.
  void begin_and_finish(void* result, void* partial, const void* first, const void* second,
                        std::size_t n) const;
  void add_and_finish(void* result, void* partial, const void* contribution, std::size_t n) const;

  // The whole reduction of a single rank: makes all `count` results from the rank's own contribution.
  void finish_alone(void* result) const;

 private:
  void scale_into_copy(const void* input);
  void make_identity();

  Reduction reduction_;
  const kernels::ReduceKernels* kernels_;
  const std::byte* input_;
  std::size_t count_;
  std::size_t limit_;
  std::size_t result_bytes_;
  std::size_t partial_bytes_;
  std::size_t contribution_bytes_;
  double prescale_;                         // still to be applied to a contribution
  bool same_type_;                          // T is A
  bool plain_;                              // contributions are partials
  bool contributions_are_elements_ = true;  // of type T
  bool nothing_to_do_;                      // finishing does not change a partial
  std::vector<std::byte> copy_;             // the scaled input, or `limit` identities of type T
  bool identity_ = false;                   // own() is the same for all offsets
};

}  // namespace hvdlite::collectives
