// What makes the output of an ended operation on the memory of plain tensors (plain_calls.cc): it has been made already.
// Thread: with the GIL held. Owns: references, as any Python object does. Blocks: no. Throws: nb::python_error.
#pragma once

#include "binding.h"

namespace hvdlite::python {

// Keeps both tensors until the operation has ended.
struct LastStep {
  PyObject_HEAD PyObject* output;
  PyObject* input;
  PyObject* mark_written;  // is told of the write, or of all in a list; null if nobody is
};

// Of an operation that is not yet submitted. mark_written: a callable, or None.
nb::object new_step(nb::handle output, nb::handle input, nb::handle mark_written);
// Is it one, or a tuple that begins with one?
bool is_last_steps(PyObject* memory);
// The output of a step, or the outputs of a tuple of them as a list, after all who want to know were told of the write. The
// operations have ended.
nb::object outputs_of(PyObject* steps);

}  // namespace hvdlite::python
