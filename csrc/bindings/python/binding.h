// The common part of the files of the Python module `_engine`: one register function for each concept, functions that raise
// errors, and templates for types that are made with CPython's own interface.
// Thread: with the GIL held. Owns: nothing. Blocks: check_without_gil(), as its call does. Throws: nb::python_error.
#pragma once

#include <Python.h>
#include <nanobind/nanobind.h>
#include <structmember.h>

#include <cstddef>
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
void register_deadline(nb::module_& module);
void register_work(nb::module_& module);
void register_last_step(nb::module_& module);
void register_gradients(nb::module_& module);
void register_pass_driver(nb::module_& module);
void register_launch(nb::module_& module);

// Takes the new reference that a function of CPython has returned. If it returned null, throws the Python error.
inline nb::object checked(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

// The levels of hvdlite_log(), as in hvdlite_config.
inline constexpr int kWarningLevel = 3, kErrorLevel = 4;

// A str of Python as the engine's text. In paths, and in messages about paths, Python keeps a byte that is no UTF-8 as a
// surrogate (PEP 383); such a surrogate becomes the same byte again. If the str has any other surrogate, all its surrogates
// become question marks.
struct Utf8 {
  std::string bytes;
  const char* c_str() const { return bytes.c_str(); }
};

// Text of the engine as a str. Bytes that are no UTF-8 (in a host name, a path) are replaced: a UnicodeDecodeError would hide
// the error that the text describes.
nb::str text(const char* utf8);

// An instance of the class installed for an error code, with exactly this message.
nb::object make_error(int code, const std::string& message);

// Raises the class installed for an error code, with exactly this message.
[[noreturn]] void raise_error(int code, const std::string& message);

// Raises the error that a function of the C ABI reported on this thread, if it failed.
void check(int code);

// The same for a call that may block; the call runs without the GIL.
template <typename Call>
void check_without_gil(Call call) {
  int code = HVDLITE_OK;
  {
    const nb::gil_scoped_release released;
    code = call();
  }
  check(code);
}

// --- types made with CPython's own interface, for objects of which there are many: nanobind's types take more memory, and
// their members are properties and not slots ---

// The tp_dealloc of a type. kRelease drops all references of an object. (The type's tp_clear may keep some of them.)
template <int (*kRelease)(PyObject*)>
void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  kRelease(self);
  type->tp_free(self);
  Py_DECREF(type);
}

template <typename Function>
void* slot_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

// Flags for add_type: kFinal for a type without derived classes.
inline constexpr unsigned kFinal = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
inline constexpr unsigned kBase = kFinal | Py_TPFLAGS_BASETYPE;

// Adds to the module a type whose objects are `Object`s. Throws what Python raises.
template <typename Object>
PyTypeObject* add_type(nb::module_& module, const char* name, unsigned flags, PyType_Slot* slots) {
  PyType_Spec spec = {name, static_cast<int>(sizeof(Object)), 0, flags, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr ||
      PyModule_AddType(module.ptr(), reinterpret_cast<PyTypeObject*>(type)) != 0) {
    throw nb::python_error();
  }
  return reinterpret_cast<PyTypeObject*>(type);
}

// Slots for a class of nanobind whose objects hold references. Python's garbage collector calls the class's traverse() and
// clear().
template <typename Object>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Object>(self)->traverse(visit, arg) : 0;
}

template <typename Object>
int clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Object>(self)->clear();
  return 0;
}

template <typename Object>
PyType_Slot collected[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<Object>)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear<Object>)},
                           {0, nullptr}};

}  // namespace hvdlite::python

template <>
struct nanobind::detail::type_caster<hvdlite::python::Utf8> {
  NB_TYPE_CASTER(hvdlite::python::Utf8, const_name("str"))

  bool from_python(handle from, std::uint8_t /*flags*/, cleanup_list* /*cleanup*/) noexcept {
    if (PyUnicode_Check(from.ptr()) == 0) return false;
    for (const char* errors : {"surrogateescape", "replace"}) {
      const object made = steal(PyUnicode_AsEncodedString(from.ptr(), "utf-8", errors));
      if (made.is_valid()) {
        value.bytes.assign(PyBytes_AS_STRING(made.ptr()),
                           static_cast<std::size_t>(PyBytes_GET_SIZE(made.ptr())));
        return true;
      }
      PyErr_Clear();
    }
    return false;
  }
};
