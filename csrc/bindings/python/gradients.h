// One parameter's gradient as Python sees it: the type from which hvdlite.torch derives ParameterGradient.
// Thread: with the GIL held; no function here releases it. Owns: references, as any Python object does. Blocks: no. Throws:
// nb::python_error, as raised by the tensor.
//
// It uses only those attributes of torch's tensors that Python sees.
#pragma once

#include "binding.h"
#include "passes.h"

namespace hvdlite::python {

// hvdlite.torch.parameter_gradient.ParameterGradient says what the members mean.
struct GradientState : Gradient {
  nb::object param = nb::none(), reduced_part = nb::none(), place = nb::none(),
             sparse_dim = nb::none();
  nb::object zeroed = nb::none();  // what the user's reset has left in .grad
  long long zeroed_version = 0;

  // The parameter's .grad. Throws if there is no parameter: __init__ was not reached, or the object is being cleared.
  nb::object grad() const;
  // Is this .grad unchanged since the user's reset?
  bool is_as_reset(nb::handle grad) const;
  // The user has reset the gradient.
  void forget();
  // Moves a fresh gradient to its place, once.
  void move_in();
  // From now on .grad counts as this rank's unreduced gradient, even if the user has put it there.
  void claim();

  int traverse(visitproc visit, void* arg) const;
  void clear();
};

}  // namespace hvdlite::python
