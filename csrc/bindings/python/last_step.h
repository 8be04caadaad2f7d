// The last step of an operation on plain tensors (plain_calls.cc): it returns the output, which exists already.
// Thread: with the GIL held. Owns: references, as any Python object does. Blocks: no. Throws: nb::python_error.
#pragma once

#include "binding.h"

namespace hvdlite::python {

// Keeps both tensors until the operation has ended.
struct LastStep {
  PyObject_HEAD PyObject* output;
  PyObject* input;
  PyObject* mark_written;  // is called with the written output, or with a list of all; may be null
};

// The step of an operation that is not submitted yet. mark_written: a callable, or None.
nb::object new_step(nb::handle output, nb::handle input, nb::handle mark_written);
// Is it a step, or a tuple that begins with one?
bool is_last_steps(PyObject* memory);
// The output of a step, or the list of outputs of a tuple of steps. First calls the mark_written of the steps. The operations
// must have ended.
nb::object outputs_of(PyObject* steps);

}  // namespace hvdlite::python
