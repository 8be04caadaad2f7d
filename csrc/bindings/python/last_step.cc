#include "last_step.h"

#include <cstddef>

namespace hvdlite::python {

namespace {

PyTypeObject* last_step_type;

bool is_step(PyObject* object) { return Py_TYPE(object) == last_step_type; }

// Tells `mark_written` of the write to `output`, or to all outputs of a list. Returns false if it raised.
bool tell_written(PyObject* mark_written, PyObject* output) {
  return mark_written == nullptr || nb::steal(PyObject_CallOneArg(mark_written, output)).is_valid();
}

void tell(PyObject* mark_written, PyObject* output) {
  if (!tell_written(mark_written, output)) throw nb::python_error();
}

PyObject* call_step(PyObject* self, PyObject* /*args*/, PyObject* /*keywords*/) {
  const auto* step = reinterpret_cast<LastStep*>(self);
  return tell_written(step->mark_written, step->output) ? Py_NewRef(step->output) : nullptr;
}

int visit_step(PyObject* self, visitproc visit, void* arg) {
  auto* step = reinterpret_cast<LastStep*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(step->output);
  Py_VISIT(step->input);
  Py_VISIT(step->mark_written);
  return 0;
}

// Keeps the output: a step may be called until it is gone.
int clear_step(PyObject* self) {
  Py_CLEAR(reinterpret_cast<LastStep*>(self)->input);
  return 0;
}

int release_step(PyObject* self) {
  auto* step = reinterpret_cast<LastStep*>(self);
  Py_CLEAR(step->output);
  Py_CLEAR(step->input);
  Py_CLEAR(step->mark_written);
  return 0;
}

PyType_Slot step_slots[] = {{Py_tp_call, slot_of(call_step)},
                            {Py_tp_traverse, slot_of(visit_step)},
                            {Py_tp_clear, slot_of(clear_step)},
                            {Py_tp_dealloc, slot_of(free_object<release_step>)},
                            {0, nullptr}};

}  // namespace

nb::object new_step(nb::handle output, nb::handle input, nb::handle mark_written) {
  nb::object step = checked(last_step_type->tp_alloc(last_step_type, 0));
  auto* members = reinterpret_cast<LastStep*>(step.ptr());
  members->output = Py_NewRef(output.ptr());
  members->input = Py_NewRef(input.ptr());
  if (!mark_written.is_none()) members->mark_written = Py_NewRef(mark_written.ptr());
  return step;
}

bool is_last_steps(PyObject* memory) {
  if (memory == nullptr) return false;
  if (PyTuple_CheckExact(memory) == 0) return is_step(memory);
  return PyTuple_GET_SIZE(memory) > 0 && is_step(PyTuple_GET_ITEM(memory, 0));
}

nb::object outputs_of(PyObject* steps) {
  if (is_step(steps)) {
    const nb::object output = nb::borrow(reinterpret_cast<LastStep*>(steps)->output);
    tell(reinterpret_cast<LastStep*>(steps)->mark_written, output.ptr());
    return output;
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(steps);
  const auto step = [&](Py_ssize_t i) {
    return reinterpret_cast<const LastStep*>(PyTuple_GET_ITEM(steps, i));
  };
  const nb::object all = checked(PyList_New(count));
  bool alike = true;  // do all steps have one mark_written?
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyList_SET_ITEM(all.ptr(), i, Py_NewRef(step(i)->output));
    alike = alike && step(i)->mark_written == step(0)->mark_written;
  }
  if (alike) {  // torch takes 0.35 us for a call, and 0.06 us for each further tensor in it
    tell(step(0)->mark_written, all.ptr());
  } else {
    for (Py_ssize_t i = 0; i < count; ++i) tell(step(i)->mark_written, step(i)->output);
  }
  return all;
}

void register_last_step(nb::module_& module) {
  last_step_type = add_type<LastStep>(module, "hvdlite._engine._LastStep",
                                      kFinal | Py_TPFLAGS_DISALLOW_INSTANTIATION, step_slots);
}

}  // namespace hvdlite::python
