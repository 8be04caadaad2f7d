// What hvdlite.handles.Handle is derived from, and the last step of an operation that goes the short way (short_way.cc): with
// many small tensors most of what a handle cost was Python making it, and finishing it.
// Thread: with the GIL held. Owns: references, as any Python object does. Blocks: no.
// Throws: nb::python_error; what Python calls sets Python's error and returns null instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "binding.h"

namespace hvdlite::python {

// Handle says what the members mean. A null object reads as None. A handle that is let go with operations in flight calls its
// own method _leave.
struct HandleState {
  PyObject_HEAD PyObject* engine;
  PyObject* numbers;
  PyObject* outcomes;
  PyObject* finish;
  PyObject* on_gpu;
  PyObject* error;
  char grouped;
};

// What makes the output of an ended operation on the memory of plain tensors: it has been made already. Keeps both tensors.
struct LastStep {
  PyObject_HEAD PyObject* output;
  PyObject* input;
  PyObject* mark_written;  // is told of the write, or of all in a list; null if nobody is
};

// The last step of an operation that is not yet submitted. mark_written: a callable, or None.
nb::object new_step(nb::handle output, nb::handle input, nb::handle mark_written);
// Throws TypeError if this is no class derived from HandleState.
void check_handle_type(nb::handle type);
// A new handle, of such a type, for operations with these last steps, a tuple.
nb::object new_handle(nb::handle type, nb::handle engine, nb::object steps, bool grouped);
// The operations are in flight under these numbers.
void set_numbers(nb::handle handle, const std::int64_t* numbers, std::size_t count);

// The operations of a handle that were started the short way, as long as nobody has waited for them.
class ShortFlight {
 public:
  // Is this such a handle, and was it not waited for?
  static bool is_in(nb::handle handle);
  // Of such a handle.
  explicit ShortFlight(nb::handle handle);

  const std::vector<std::int64_t>& numbers() const { return numbers_; }
  // The operations were waited for: the handle has their outcomes. Returns the output, or a list of a group's. What raises
  // leaves the handle as it is.
  nb::object land() const;

 private:
  nb::object handle_, steps_;
  std::vector<std::int64_t> numbers_;
};

}  // namespace hvdlite::python
