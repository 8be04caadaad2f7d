#include "gradients.h"

#include <cstddef>
#include <cstdint>

#include "native_types.h"

namespace hvdlite::python {

namespace {

// The names of what is asked of a tensor, interned.
struct HookNames {
  PyObject* grad = PyUnicode_InternFromString("grad");
  PyObject* version = PyUnicode_InternFromString("_version");
};
const HookNames* hook_names;
PyTypeObject* gradient_state_type;
PyTypeObject* bucket_state_type;
PyTypeObject* pass_state_type;

// An answer that may also be that Python raised.
enum class Answer { kFalse, kTrue, kRaised };

Answer answer(bool yes) { return yes ? Answer::kTrue : Answer::kFalse; }

Answer has_version(PyObject* grad, long long version) {
  const Owned now(PyObject_GetAttr(grad, hook_names->version));
  if (now.failed()) return Answer::kRaised;
  const long long number = PyLong_AsLongLong(now.get());
  if (number == -1 && PyErr_Occurred() != nullptr) return Answer::kRaised;
  return answer(number == version);
}

constexpr std::size_t kLine = 64;  // bytes that come together from memory

// --- hooks ----------------------------------------------------------------------------------------------------------

// The usual cases of Reducer._before.
Answer before(const PassState& pass, GradientState& slot) {
  if (pass.unsettled != 0) return Answer::kFalse;
  const Owned grad(grad_of(slot));
  if (grad.failed()) return Answer::kRaised;
  if (grad.get() == Py_None) {
    if (slot.dirty != 0 || !is_none(slot.aside)) return Answer::kFalse;
    slot.fresh = 1;
    return Answer::kTrue;
  }
  if (slot.dirty != 0) return Answer::kTrue;
  return grad.get() == slot.zeroed ? has_version(grad.get(), slot.zeroed_version) : Answer::kFalse;
}

// The usual cases of Reducer._after: not the last gradient of a bucket, which launches it.
Answer after(const PassState& pass, GradientState& slot) {
  if (pass.current_task == nullptr) return Answer::kFalse;
  const Owned task(PyObject_CallNoArgs(pass.current_task));
  if (task.failed()) return Answer::kRaised;
  const long long number = PyLong_AsLongLong(task.get());
  if (number == -1 && PyErr_Occurred() != nullptr) return Answer::kRaised;
  if (number != pass.task || slot.stamp == pass.stamp) return Answer::kFalse;
  if (slot.fresh != 0 && !is_none(slot.place)) return Answer::kFalse;
  if (pass.eager != 0) {
    if (slot.bucket == nullptr || !PyObject_TypeCheck(slot.bucket, bucket_state_type)) {
      return Answer::kFalse;
    }
    auto* bucket = reinterpret_cast<BucketState*>(slot.bucket);
    if (bucket->device != HVDLITE_DEVICE_CPU || bucket->missing <= 1) return Answer::kFalse;
    --bucket->missing;
  }
  slot.stamp = pass.stamp;
  slot.dirty = 1;
  return Answer::kTrue;
}

template <Answer (*kUsual)(const PassState&, GradientState&)>
PyObject* call_hook(PyObject* self, PyObject* const* args, std::size_t count, PyObject* keywords) {
  auto* hook = reinterpret_cast<GradientHook*>(self);
  hook->fetch_ahead();
  if (PyVectorcall_NARGS(count) != 1 || keywords != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a hook takes one tensor");
    return nullptr;
  }
  switch (kUsual(*hook->pass, *hook->slot)) {
    case Answer::kTrue:
      Py_RETURN_NONE;
    case Answer::kFalse:
      return PyObject_CallFunctionObjArgs(hook->otherwise, hook->slot, args[0], nullptr);
    case Answer::kRaised:
      break;
  }
  return nullptr;
}

// What was raised before the gradient was counted (Ctrl-C) does not take back what backward has added to it.
PyObject* call_after(PyObject* self, PyObject* const* args, std::size_t count, PyObject* keywords) {
  GradientState* slot = reinterpret_cast<GradientHook*>(self)->slot;
  const long long stamp = slot->stamp;
  PyObject* result = call_hook<after>(self, args, count, keywords);
  if (result == nullptr && slot->stamp == stamp) slot->dirty = 1;
  return result;
}

PyObject* new_hook(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  const char* const expected[] = {"pass_state", "slot", "otherwise", "after", nullptr};
  PyObject* pass = nullptr;
  PyObject* slot = nullptr;
  PyObject* otherwise = nullptr;
  int is_after = 0;
  if (PyArg_ParseTupleAndKeywords(args, keywords, "O!O!Op", const_cast<char**>(expected),
                                  pass_state_type, &pass, gradient_state_type, &slot, &otherwise,
                                  &is_after) == 0) {
    return nullptr;
  }
  auto* hook = reinterpret_cast<GradientHook*>(type->tp_alloc(type, 0));
  if (hook == nullptr) return nullptr;
  hook->call = is_after != 0 ? call_after : call_hook<before>;
  hook->pass = reinterpret_cast<PassState*>(Py_NewRef(pass));
  hook->slot = reinterpret_cast<GradientState*>(Py_NewRef(slot));
  hook->otherwise = Py_NewRef(otherwise);
  return reinterpret_cast<PyObject*>(hook);
}

PyObject* fetch_ahead(PyObject* self, PyObject* objects) {
  PyObject* const list = PySequence_Fast(objects, "the objects are no sequence");
  if (list == nullptr) return nullptr;
  FetchAhead ahead{};
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); ++i) {
    PyObject* const object = PySequence_Fast_GET_ITEM(list, i);
    if (PyDict_Check(object)) {
      // As much as is read of one with an item or two: its items begin behind the table's head and index.
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

PyObject* forget(PyObject* self, PyObject* /*none*/) {
  auto* slot = reinterpret_cast<GradientState*>(self);
  const Owned grad(grad_of(*slot));
  if (grad.failed()) return nullptr;
  const bool has_grad = grad.get() != Py_None;
  if (has_grad) {
    const Owned version(PyObject_GetAttr(grad.get(), hook_names->version));
    if (version.failed()) return nullptr;
    slot->zeroed_version = PyLong_AsLongLong(version.get());
    if (slot->zeroed_version == -1 && PyErr_Occurred() != nullptr) return nullptr;
  }
  slot->dirty = slot->dirty != 0 && has_grad ? 1 : 0;
  slot->filled = slot->fresh = 0;
  // The engine may write where a dirty one lies, which shows in no version.
  Py_XSETREF(slot->zeroed, slot->dirty != 0 ? nullptr : Py_NewRef(grad.get()));
  Py_CLEAR(slot->aside);
  Py_RETURN_NONE;
}

// --- the types ------------------------------------------------------------------------------------------------------

// Of each type: its objects' references, for Python's garbage collector.
int visit_gradient(PyObject* self, visitproc visit, void* arg) {
  auto* slot = reinterpret_cast<GradientState*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(slot->param);
  Py_VISIT(slot->bucket);
  Py_VISIT(slot->aside);
  Py_VISIT(slot->place);
  Py_VISIT(slot->sparse_dim);
  Py_VISIT(slot->zeroed);
  return 0;
}

int clear_gradient(PyObject* self) {
  auto* slot = reinterpret_cast<GradientState*>(self);
  Py_CLEAR(slot->param);
  Py_CLEAR(slot->bucket);
  Py_CLEAR(slot->aside);
  Py_CLEAR(slot->place);
  Py_CLEAR(slot->sparse_dim);
  Py_CLEAR(slot->zeroed);
  return 0;
}

int visit_bucket(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return 0;
}

int clear_bucket(PyObject* /*self*/) { return 0; }

int visit_pass(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<PassState*>(self)->current_task);
  return 0;
}

int clear_pass(PyObject* self) {
  Py_CLEAR(reinterpret_cast<PassState*>(self)->current_task);
  return 0;
}

int visit_hook(PyObject* self, visitproc visit, void* arg) {
  auto* hook = reinterpret_cast<GradientHook*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<PyObject*>(hook->pass));
  Py_VISIT(reinterpret_cast<PyObject*>(hook->slot));
  Py_VISIT(hook->otherwise);
  return 0;
}

// The pass and the slot stay: a hook may be called until it is gone, and `otherwise` is enough to break a cycle.
int clear_hook(PyObject* self) {
  Py_XSETREF(reinterpret_cast<GradientHook*>(self)->otherwise, Py_NewRef(Py_None));
  return 0;
}

int release_hook(PyObject* self) {
  auto* hook = reinterpret_cast<GradientHook*>(self);
  Py_CLEAR(hook->pass);
  Py_CLEAR(hook->slot);
  Py_CLEAR(hook->otherwise);
  return 0;
}

PyMemberDef gradient_members[] = {
    HVDLITE_MEMBER(GradientState, param, "param", T_OBJECT),
    HVDLITE_MEMBER(GradientState, bucket, "bucket", T_OBJECT),
    HVDLITE_MEMBER(GradientState, aside, "aside", T_OBJECT),
    HVDLITE_MEMBER(GradientState, place, "place", T_OBJECT),
    HVDLITE_MEMBER(GradientState, sparse_dim, "sparse_dim", T_OBJECT),
    HVDLITE_MEMBER(GradientState, zeroed, "_zeroed", T_OBJECT),
    HVDLITE_MEMBER(GradientState, zeroed_version, "_zeroed_version", T_LONGLONG),
    HVDLITE_MEMBER(GradientState, stamp, "stamp", T_LONGLONG),
    HVDLITE_MEMBER(GradientState, dirty, "dirty", T_BOOL),
    HVDLITE_MEMBER(GradientState, filled, "filled", T_BOOL),
    HVDLITE_MEMBER(GradientState, fresh, "fresh", T_BOOL),
    {}};

PyMethodDef gradient_methods[] = {
    {"forget", forget, METH_NOARGS, "The user has reset the gradient."}, {}};

PyMemberDef bucket_members[] = {HVDLITE_MEMBER(BucketState, missing, "missing", T_LONGLONG),
                                HVDLITE_MEMBER(BucketState, launched, "launched", T_LONGLONG),
                                HVDLITE_MEMBER(BucketState, device, "device", T_INT),
                                {}};

PyMemberDef pass_members[] = {HVDLITE_MEMBER(PassState, current_task, "_current_task", T_OBJECT),
                              HVDLITE_MEMBER(PassState, task, "_task", T_LONGLONG),
                              HVDLITE_MEMBER(PassState, stamp, "_stamp", T_LONGLONG),
                              HVDLITE_MEMBER(PassState, eager, "_eager", T_BOOL),
                              HVDLITE_MEMBER(PassState, unsettled, "_unsettled", T_BOOL),
                              {}};

PyMethodDef hook_methods[] = {{"fetch_ahead", fetch_ahead, METH_O,
                               "Whenever the hook is called, it has the processor fetch these "
                               "objects, which will be read soon. It keeps only addresses."},
                              {}};

PyMemberDef hook_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(GradientHook, call), READONLY, nullptr}, {}};

PyType_Slot gradient_slots[] = {{Py_tp_doc, const_cast<char*>("The state of one gradient.")},
                                {Py_tp_new, slot_of(PyType_GenericNew)},
                                {Py_tp_traverse, slot_of(visit_gradient)},
                                {Py_tp_clear, slot_of(clear_gradient)},
                                {Py_tp_dealloc, slot_of(free_object<clear_gradient>)},
                                {Py_tp_members, gradient_members},
                                {Py_tp_methods, gradient_methods},
                                {0, nullptr}};

PyType_Slot bucket_slots[] = {{Py_tp_doc, const_cast<char*>("The counts of one bucket.")},
                              {Py_tp_new, slot_of(PyType_GenericNew)},
                              {Py_tp_traverse, slot_of(visit_bucket)},
                              {Py_tp_clear, slot_of(clear_bucket)},
                              {Py_tp_dealloc, slot_of(free_object<clear_bucket>)},
                              {Py_tp_members, bucket_members},
                              {0, nullptr}};

PyType_Slot pass_slots[] = {{Py_tp_doc, const_cast<char*>("The pass that is running.")},
                            {Py_tp_new, slot_of(PyType_GenericNew)},
                            {Py_tp_traverse, slot_of(visit_pass)},
                            {Py_tp_clear, slot_of(clear_pass)},
                            {Py_tp_dealloc, slot_of(free_object<clear_pass>)},
                            {Py_tp_members, pass_members},
                            {0, nullptr}};

PyType_Slot hook_slots[] = {{Py_tp_doc, const_cast<char*>("A hook of one parameter.")},
                            {Py_tp_new, slot_of(new_hook)},
                            {Py_tp_call, slot_of(PyVectorcall_Call)},
                            {Py_tp_traverse, slot_of(visit_hook)},
                            {Py_tp_clear, slot_of(clear_hook)},
                            {Py_tp_dealloc, slot_of(free_object<release_hook>)},
                            {Py_tp_members, hook_members},
                            {Py_tp_methods, hook_methods},
                            {0, nullptr}};

constexpr unsigned kHook = kFinal | Py_TPFLAGS_HAVE_VECTORCALL;

}  // namespace

PyObject* grad_of(const GradientState& slot) {
  if (slot.param != nullptr) return PyObject_GetAttr(slot.param, hook_names->grad);
  PyErr_SetString(PyExc_AttributeError, "the slot has no parameter");
  return nullptr;
}

void FetchAhead::add(const void* memory, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory) / kLine;
  const auto end = (reinterpret_cast<std::uintptr_t>(memory) + bytes + kLine - 1) / kLine;
  for (auto line = begin; line < end && count < kMost; ++line) {
    lines[count++] = reinterpret_cast<const void*>(line * kLine);
  }
}

GradientState& gradient_state(nb::handle slot) {
  if (!PyObject_TypeCheck(slot.ptr(), gradient_state_type))
    throw nb::type_error("this is no GradientState");
  return *reinterpret_cast<GradientState*>(slot.ptr());
}

BucketState& bucket_state(nb::handle bucket) {
  if (!PyObject_TypeCheck(bucket.ptr(), bucket_state_type))
    throw nb::type_error("this is no BucketState");
  return *reinterpret_cast<BucketState*>(bucket.ptr());
}

void register_gradients(nb::module_& module) {
  hook_names = new HookNames;
  gradient_state_type =
      add_type<GradientState>(module, "hvdlite._engine.GradientState", kBase, gradient_slots);
  bucket_state_type =
      add_type<BucketState>(module, "hvdlite._engine.BucketState", kBase, bucket_slots);
  pass_state_type = add_type<PassState>(module, "hvdlite._engine.PassState", kBase, pass_slots);
  PyTypeObject* hook =
      add_type<GradientHook>(module, "hvdlite._engine.GradientHook", kHook, hook_slots);
  // torch warns when it saves a tensor with a hook, unless the hook says that it is not to be saved.
  if (PyObject_SetAttrString(reinterpret_cast<PyObject*>(hook), "__torch_unserializable__",
                             Py_True) != 0) {
    throw nb::python_error();
  }
}

}  // namespace hvdlite::python
