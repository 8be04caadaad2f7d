#include "gradients.h"

#include <new>

#include "native_types.h"

namespace hvdlite::python {

namespace {

// The names of what is asked of a tensor, interned.
struct GradientNames {
  PyObject* grad = PyUnicode_InternFromString("grad");
  PyObject* version = PyUnicode_InternFromString("_version");
  PyObject* move_in = PyUnicode_InternFromString("move_in");
};
const GradientNames* gradient_names;
PyTypeObject* gradient_state_type;

GradientState& state_of(PyObject* self) { return *reinterpret_cast<GradientState*>(self); }

long long version_of(nb::handle grad) {
  const nb::object version = checked(PyObject_GetAttr(grad.ptr(), gradient_names->version));
  const long long number = PyLong_AsLongLong(version.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

// --- the type -------------------------------------------------------------------------------------------------------

PyObject* new_gradient(PyTypeObject* type, PyObject* /*args*/, PyObject* /*keywords*/) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) new (&state_of(self).gradient) Gradient;
  return self;
}

int visit_gradient(PyObject* self, visitproc visit, void* arg) {
  GradientState& slot = state_of(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(slot.param);
  Py_VISIT(slot.aside);
  Py_VISIT(slot.place);
  Py_VISIT(slot.sparse_dim);
  Py_VISIT(slot.zeroed);
  return 0;
}

int clear_gradient(PyObject* self) {
  GradientState& slot = state_of(self);
  Py_CLEAR(slot.param);
  Py_CLEAR(slot.aside);
  Py_CLEAR(slot.place);
  Py_CLEAR(slot.sparse_dim);
  Py_CLEAR(slot.zeroed);
  return 0;
}

PyObject* forget_gradient(PyObject* self, PyObject* /*none*/) {
  return guarded([self] {
    state_of(self).forget();
    return nb::none();
  });
}

PyObject* move_gradient_in(PyObject* self, PyObject* /*none*/) {
  return guarded([self] {
    state_of(self).move_in();
    return nb::none();
  });
}

PyObject* is_zero(PyObject* self, PyObject* /*none*/) {
  return guarded([self] {
    const GradientState& slot = state_of(self);
    return nb::bool_(slot.is_as_reset(slot.grad()));
  });
}

PyMemberDef gradient_members[] = {
    HVDLITE_MEMBER(GradientState, param, "param", T_OBJECT),
    HVDLITE_MEMBER(GradientState, aside, "aside", T_OBJECT),
    HVDLITE_MEMBER(GradientState, place, "place", T_OBJECT),
    HVDLITE_MEMBER(GradientState, sparse_dim, "sparse_dim", T_OBJECT),
    HVDLITE_MEMBER(GradientState, zeroed, "_zeroed", T_OBJECT),
    HVDLITE_MEMBER(GradientState, zeroed_version, "_zeroed_version", T_LONGLONG),
    HVDLITE_MEMBER(GradientState, gradient.bucket, "bucket", T_INT),
    HVDLITE_MEMBER(GradientState, gradient.stamp, "stamp", T_LONGLONG),
    HVDLITE_MEMBER(GradientState, gradient.dirty, "dirty", T_BOOL),
    HVDLITE_MEMBER(GradientState, gradient.filled, "filled", T_BOOL),
    HVDLITE_MEMBER(GradientState, gradient.fresh, "fresh", T_BOOL),
    {}};

PyMethodDef gradient_methods[] = {
    {"forget", forget_gradient, METH_NOARGS, "The user has reset the gradient."},
    {"is_zero", is_zero, METH_NOARGS, "Is .grad as the reset has left it?"},
    {"move_in", move_gradient_in, METH_NOARGS, "Offers the gradient its place, once."},
    {}};

PyType_Slot gradient_slots[] = {{Py_tp_doc, const_cast<char*>("The state of one gradient.")},
                                {Py_tp_new, slot_of(new_gradient)},
                                {Py_tp_traverse, slot_of(visit_gradient)},
                                {Py_tp_clear, slot_of(clear_gradient)},
                                {Py_tp_dealloc, slot_of(free_object<clear_gradient>)},
                                {Py_tp_members, gradient_members},
                                {Py_tp_methods, gradient_methods},
                                {0, nullptr}};

}  // namespace

nb::object GradientState::grad() const {
  if (param != nullptr) return checked(PyObject_GetAttr(param, gradient_names->grad));
  PyErr_SetString(PyExc_AttributeError, "the slot has no parameter");
  throw nb::python_error();
}

bool GradientState::is_as_reset(nb::handle grad) const {
  if (grad.is_none()) return is_none(zeroed);
  return grad.ptr() == zeroed && version_of(grad) == zeroed_version;
}

void GradientState::forget() {
  const nb::object now = grad();
  if (!now.is_none()) zeroed_version = version_of(now);
  Passes::forget(gradient, !now.is_none());
  // The engine may write where a dirty one lies, which shows in no version.
  Py_XSETREF(zeroed, gradient.dirty ? nullptr : Py_NewRef(now.ptr()));
  Py_CLEAR(aside);
}

// Without a plan there are no places yet; it may come later.
void GradientState::move_in() {
  if (!gradient.fresh || is_none(place)) return;
  gradient.fresh = false;
  checked(PyObject_CallMethodOneArg(place, gradient_names->move_in, param));
}

GradientState& gradient_state(nb::handle slot) {
  if (!PyObject_TypeCheck(slot.ptr(), gradient_state_type))
    throw nb::type_error("this is no GradientState");
  return state_of(slot.ptr());
}

void register_gradients(nb::module_& module) {
  gradient_names = new GradientNames;
  gradient_state_type =
      add_type<GradientState>(module, "hvdlite._engine.GradientState", kBase, gradient_slots);
}

}  // namespace hvdlite::python
