// One parameter's gradient as Python sees it: the type that hvdlite.torch derives its ParameterGradient from.
// Thread: with the GIL held, which nothing here gives away. Owns: references, as any Python object does. Blocks: no.
// Throws: nb::python_error, what the tensor raised.
//
// Nothing is known of torch but the attributes of a tensor that Python sees.
#pragma once

#include "binding.h"
#include "passes.h"

namespace hvdlite::python {

// hvdlite.torch.gradients.ParameterGradient says what the members mean.
struct GradientState : Gradient {
  nb::object param = nb::none(), reduced_part = nb::none(), place = nb::none(),
             sparse_dim = nb::none();
  nb::object zeroed = nb::none();  // what the user's reset has left in .grad
  long long zeroed_version = 0;

  // The parameter's .grad. Throws if there is no parameter: __init__ was not reached, or the gradient is being cleared.
  nb::object grad() const;
  // Is this .grad as the user's reset has left it?
  bool is_as_reset(nb::handle grad) const;
  // The user has reset the gradient.
  void forget();
  // Offers a fresh gradient its place, once.
  void move_in();
  // What is in .grad is gradient of this rank alone, whoever put it there.
  void claim();

  int traverse(visitproc visit, void* arg) const;
  void clear();
};

}  // namespace hvdlite::python
