// What the files of the Python module `_engine` share: one register function for each concept, and how errors are raised.
// Thread: with the GIL held. Owns: nothing. Blocks: no. Throws: nb::python_error.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "hvdlite/hvdlite.h"

namespace hvdlite::python {

namespace nb = nanobind;

void register_errors(nb::module_& module);
void register_config(nb::module_& module);
void register_result(nb::module_& module);
void register_arena(nb::module_& module);
void register_engine(nb::module_& module);
void register_device(nb::module_& module);
void register_job(nb::module_& module);
void register_termination(nb::module_& module);
void register_work(nb::module_& module);
void register_last_step(nb::module_& module);
void register_gradients(nb::module_& module);
void register_pass_driver(nb::module_& module);
void register_hooks(nb::module_& module);
void register_launch(nb::module_& module);

// What a function of CPython's has made. Throws what it raised instead.
inline nb::object checked(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

// Text of the core as a str; bytes that are no UTF-8 (a host name, a path) are replaced instead of hiding the error.
nb::str text(const char* utf8);

// An instance of the class installed for an error code, with exactly this message.
nb::object make_error(int code, const std::string& message);

// Raises the class installed for an error code, with exactly this message.
[[noreturn]] void raise_error(int code, const std::string& message);

// Raises what a function of the C ABI reported on this thread, unless it succeeded.
void check(int code);

// What a call that ran without the GIL gave.
struct Outcome {
  int code = HVDLITE_OK;
  std::string message;
  bool ended = false;  // of a wait: have all operations ended?
};

// Runs a blocking call without the GIL; its error text belongs to this thread and is copied before anything else runs.
template <typename Call>
Outcome without_gil(Call call) {
  nb::gil_scoped_release release;
  Outcome outcome;
  outcome.code = call();
  if (outcome.code != HVDLITE_OK) outcome.message = hvdlite_last_error();
  return outcome;
}

// Raises what such a call reported, unless it succeeded.
inline void check_outcome(const Outcome& outcome) {
  if (outcome.code != HVDLITE_OK) raise_error(outcome.code, outcome.message);
}

}  // namespace hvdlite::python
