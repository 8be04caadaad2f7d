#include "binding.h"

namespace hvdlite::python {

namespace {

constexpr const char* kModule = "hvdlite._engine";
// The classes are in the module, and not in a C++ global, so that they end with the interpreter that made them.
constexpr const char* kClasses = "_error_classes";

nb::object class_of(int code) {
  nb::dict classes = nb::cast<nb::dict>(nb::module_::import_(kModule).attr(kClasses));
  nb::int_ key(code);
  return classes.contains(key) ? nb::object(classes[key]) : nb::borrow(PyExc_RuntimeError);
}

void set_error_classes(nb::handle classes) {
  nb::dict copy;
  copy.update(classes);
  nb::module_::import_(kModule).attr(kClasses) = copy;
}

}  // namespace

nb::str text(const char* utf8) {
  const std::string_view view(utf8 == nullptr ? "" : utf8);
  return nb::borrow<nb::str>(
      checked(PyUnicode_DecodeUTF8(view.data(), static_cast<Py_ssize_t>(view.size()), "replace")));
}

nb::object make_error(int code, const std::string& message) {
  return class_of(code)(text(message.c_str()));
}

void raise_error(int code, const std::string& message) {
  PyErr_SetObject(class_of(code).ptr(), text(message.c_str()).ptr());
  throw nb::python_error();
}

void check(int code) {
  if (code != HVDLITE_OK) raise_error(code, hvdlite_last_error());
}

void register_errors(nb::module_& module) {
  module.attr(kClasses) = nb::dict();
  module.def("set_error_classes", &set_error_classes, nb::arg("classes"));
}

}  // namespace hvdlite::python
