// One parameter's gradient, and the two hooks that autograd calls before and after it adds to the gradient. The hooks are
// native objects.
// Thread: with the GIL held. Owns: each hook its reducer and its gradient. Blocks: as PassDriver. Throws: gradients as
// gradients.h says. Hooks throw nothing: like CPython's own types they set Python's error and return null.

#include "gradients.h"

#include <cstddef>
#include <cstdint>
#include <exception>

#include "pass_driver.h"

namespace hvdlite::python {

namespace {

// The names of tensor attributes, interned.
struct GradientNames {
  PyObject* grad = PyUnicode_InternFromString("grad");
  PyObject* version = PyUnicode_InternFromString("_version");
};
const GradientNames* gradient_names;

long long version_of(nb::handle grad) {
  return nb::cast<long long>(checked(PyObject_GetAttr(grad.ptr(), gradient_names->version)));
}

}  // namespace

nb::object GradientState::grad() const {
  return checked(PyObject_GetAttr(param.ptr(), gradient_names->grad));
}

bool GradientState::is_as_reset(nb::handle grad) const {
  return grad.is(zeroed) && (grad.is_none() || version_of(grad) == zeroed_version);
}

void GradientState::forget() {
  const nb::object now = grad();
  if (!now.is_none()) zeroed_version = version_of(now);
  Passes::forget(*this, !now.is_none());
  // If the gradient is dirty, the engine may write to it, and the version does not show that.
  zeroed = dirty ? nb::none() : now;
  reduced_part = nb::none();
}

void GradientState::move_in() {
  if (!fresh || place.is_none())
    return;  // without a plan there are no places yet; a place may come later
  fresh = false;
  place.attr("move_in")(param);
}

void GradientState::claim() {
  dirty = true;
  fresh = false;
  zeroed = nb::none();  // as in forget()
}

int GradientState::traverse(visitproc visit, void* arg) const {
  for (const nb::object* member : {&param, &reduced_part, &place, &sparse_dim, &zeroed}) {
    Py_VISIT(member->ptr());
  }
  return 0;
}

void GradientState::clear() {
  for (nb::object* member : {&param, &reduced_part, &place, &sparse_dim, &zeroed})
    *member = nb::none();
}

// --- the hooks --------------------------------------------------------------------------------------------------------

namespace {

constexpr std::size_t kLine = 64;  // the processor reads memory in pieces of this many bytes

// Addresses of memory that will be read soon, so that the processor can prefetch it. If the memory at an address has been
// freed, the prefetch is useless but harmless. If count is 0, there is nothing to prefetch.
struct FetchAhead {
  static constexpr int kMost = 20;
  int count;
  const void* lines[kMost];

  void operator()() const {
    for (int i = 0; i < count; ++i) __builtin_prefetch(lines[i]);
  }
  void add(const void* memory, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory) / kLine;
    const auto end = (reinterpret_cast<std::uintptr_t>(memory) + bytes + kLine - 1) / kLine;
    for (auto line = begin; line < end && count < kMost; ++line) {
      lines[count++] = reinterpret_cast<const void*>(line * kLine);
    }
  }
};

struct GradientHook {
  PyObject_HEAD vectorcallfunc call;
  PassDriver* driver;
  GradientState* state;
  PyObject *reducer, *gradient;  // hold references to the two objects above
  FetchAhead fetch_ahead;
};

// Calls `function` for CPython: returns a new reference, or null with Python's error set if it throws.
template <typename Function>
PyObject* guarded(Function function) {
  try {
    return function().release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <void (PassDriver::*kEvent)(GradientState&)>
PyObject* call_hook(PyObject* self, PyObject* const* /*tensor*/, std::size_t count,
                    PyObject* keywords) {
  auto* hook = reinterpret_cast<GradientHook*>(self);
  hook->fetch_ahead();
  if (PyVectorcall_NARGS(count) != 1 || keywords != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a hook takes one tensor");
    return nullptr;
  }
  return guarded([hook] {
    (hook->driver->*kEvent)(*hook->state);
    return nb::none();
  });
}

PyObject* new_hook(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  const char* const expected[] = {"reducer", "gradient", "after", nullptr};
  PyObject* reducer = nullptr;
  PyObject* gradient = nullptr;
  int is_after = 0;
  if (PyArg_ParseTupleAndKeywords(args, keywords, "OOp", const_cast<char**>(expected), &reducer,
                                  &gradient, &is_after) == 0) {
    return nullptr;
  }
  return guarded([&] {
    PassDriver& driver = nb::cast<PassDriver&>(nb::handle(reducer));
    GradientState& state = nb::cast<GradientState&>(nb::handle(gradient));
    nb::object made = checked(type->tp_alloc(type, 0));
    auto* hook = reinterpret_cast<GradientHook*>(made.ptr());
    hook->call = is_after != 0 ? call_hook<&PassDriver::after> : call_hook<&PassDriver::before>;
    hook->driver = &driver;
    hook->state = &state;
    hook->reducer = Py_NewRef(reducer);
    hook->gradient = Py_NewRef(gradient);
    return made;
  });
}

PyObject* fetch_ahead(PyObject* self, PyObject* objects) {
  PyObject* const list = PySequence_Fast(objects, "the objects are no sequence");
  if (list == nullptr) return nullptr;
  FetchAhead ahead{};
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); ++i) {
    PyObject* const object = PySequence_Fast_GET_ITEM(list, i);
    if (PyDict_Check(object)) {
      // Prefetches the part of a dict with one or two items that a look-up reads: the items lie behind the table's head and
      // index.
      ahead.add(object, sizeof(PyDictObject));
      ahead.add(reinterpret_cast<PyDictObject*>(object)->ma_keys, kLine);
    } else if (Py_TYPE(object) == Py_TYPE(self)) {
      const auto* other = reinterpret_cast<GradientHook*>(object);
      const auto* end = other->fetch_ahead.lines + other->fetch_ahead.count;
      ahead.add(other, static_cast<std::size_t>(reinterpret_cast<const std::byte*>(end) -
                                                reinterpret_cast<const std::byte*>(other)));
    } else {
      ahead.add(object, static_cast<std::size_t>(Py_TYPE(object)->tp_basicsize));
    }
  }
  Py_DECREF(list);
  reinterpret_cast<GradientHook*>(self)->fetch_ahead = ahead;
  Py_RETURN_NONE;
}

int visit_hook(PyObject* self, visitproc visit, void* arg) {
  auto* hook = reinterpret_cast<GradientHook*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(hook->reducer);
  Py_VISIT(hook->gradient);
  return 0;
}

// The garbage collector must not clear a hook, because autograd may call the hook until it is gone. The gradient breaks the
// cycle instead.
int release_hook(PyObject* self) {
  auto* hook = reinterpret_cast<GradientHook*>(self);
  Py_CLEAR(hook->reducer);
  Py_CLEAR(hook->gradient);
  return 0;
}

PyMethodDef hook_methods[] = {{"fetch_ahead", fetch_ahead, METH_O, nullptr}, {}};

PyMemberDef hook_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(GradientHook, call), READONLY, nullptr}, {}};

PyType_Slot hook_slots[] = {{Py_tp_new, slot_of(new_hook)},
                            {Py_tp_call, slot_of(PyVectorcall_Call)},
                            {Py_tp_traverse, slot_of(visit_hook)},
                            {Py_tp_dealloc, slot_of(free_object<release_hook>)},
                            {Py_tp_members, hook_members},
                            {Py_tp_methods, hook_methods},
                            {0, nullptr}};

constexpr unsigned kHook = kFinal | Py_TPFLAGS_HAVE_VECTORCALL;

}  // namespace

void register_gradients(nb::module_& module) {
  gradient_names = new GradientNames;
  const auto or_none = nb::for_setter(nb::arg("value").none());
  nb::class_<GradientState>(module, "GradientState", nb::type_slots(collected<GradientState>))
      .def(nb::init<>())
      .def_rw("param", &GradientState::param, or_none)
      .def_rw("reduced_part", &GradientState::reduced_part, or_none)
      .def_rw("place", &GradientState::place, or_none)
      .def_rw("sparse_dim", &GradientState::sparse_dim, or_none)
      .def_rw("bucket", &GradientState::bucket)
      .def_rw("stamp", &GradientState::stamp)
      .def_rw("dirty", &GradientState::dirty)
      .def_rw("filled", &GradientState::filled)
      .def_rw("fresh", &GradientState::fresh)
      .def("forget", &GradientState::forget)
      .def("is_zero", [](const GradientState& self) { return self.is_as_reset(self.grad()); })
      .def("move_in", &GradientState::move_in)
      .def("claim", &GradientState::claim);
  PyTypeObject* hook =
      add_type<GradientHook>(module, "hvdlite._engine.GradientHook", kHook, hook_slots);
  // Without this attribute, torch warns when it saves a tensor that has the hook.
  if (PyObject_SetAttrString(reinterpret_cast<PyObject*>(hook), "__torch_unserializable__",
                             Py_True) != 0) {
    throw nb::python_error();
  }
}

}  // namespace hvdlite::python
