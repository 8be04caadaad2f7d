// hvdlite._engine: one register function for each concept. The stub hvdlite/_engine.pyi documents all names.
#include "binding.h"

namespace python = hvdlite::python;

NB_MODULE(_engine, module) {
  // Handles and engines may be alive when the interpreter ends. That is no leak worth a report on stderr.
  nanobind::set_leak_warnings(false);
  module.attr("__version__") = hvdlite_version();
  python::register_errors(module);
  python::register_config(module);
  python::register_result(module);
  python::register_arena(module);
  python::register_work(module);
  python::register_last_step(module);
  python::register_engine(module);
  python::register_device(module);
  python::register_job(module);
  python::register_termination(module);
  python::register_deadline(module);
  python::register_gradients(module);
  python::register_pass_driver(module);
  python::register_launch(module);
}
