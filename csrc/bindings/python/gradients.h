// One parameter's gradient as Python sees it: the type that hvdlite.torch derives its Slot from.
// Thread: with the GIL held, which nothing here gives away. Owns: references, as any Python object does. Blocks: no.
// Throws: nb::python_error, what the tensor raised.
//
// Nothing is known of torch but the attributes of a tensor that Python sees.
#pragma once

#include "binding.h"
#include "passes.h"

namespace hvdlite::python {

// hvdlite.torch.slots.Slot says what the members mean. A null object reads as None.
struct GradientState {
  PyObject_HEAD PyObject* param;
  PyObject* aside;
  PyObject* place;
  PyObject* sparse_dim;
  PyObject* zeroed;
  long long zeroed_version;
  Gradient gradient;

  // The parameter's .grad. Throws if there is no parameter: __init__ was not reached, or the slot is being cleared.
  nb::object grad() const;
  // Is this .grad as the user's reset has left it?
  bool is_as_reset(nb::handle grad) const;
  void forget();
  void move_in();
};

// The state in an object of hvdlite.torch's. Throws TypeError if it is none.
GradientState& gradient_state(nb::handle slot);

}  // namespace hvdlite::python
