// The way of a bucket's gradients into the engine and back: what memory they are in, that it is sent, and whether it is still
// theirs. The usual case of methods in hvdlite/torch/flights.py, to the letter: of DenseBucket.launch and of Flight.land.

#include <nanobind/stl/optional.h>

#include <optional>
#include <utility>
#include <vector>

#include "engine.h"
#include "gradients.h"
#include "native_types.h"

namespace hvdlite::python {

using namespace nb::literals;

namespace {

// The names of what is asked of a tensor, interned.
struct GatherNames {
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* layout = PyUnicode_InternFromString("layout");
  PyObject* device = PyUnicode_InternFromString("device");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
};
const GatherNames* gather_names;

nb::object attribute(nb::handle object, PyObject* name) {
  return checked(PyObject_GetAttr(object.ptr(), name));
}

nb::object answer(nb::handle object, PyObject* method) {
  return checked(PyObject_CallMethodNoArgs(object.ptr(), method));
}

// What was sent of a bucket, in order. The memory of a gradient that is reduced where it is is its own.
class Sent {
 public:
  Sent() = default;
  // items: of flights.Item.
  Sent(const nb::list& items, nb::handle pointers) {
    const Int64List addresses(pointers);
    if (static_cast<std::size_t>(addresses.size()) != items.size()) {
      throw nb::value_error("each item has one pointer");
    }
    for (const nb::handle item : items) {
      const auto tuple = nb::cast<nb::tuple>(item);
      if (tuple.size() != 4) throw nb::value_error("an item has four parts");
      gradient_state(tuple[0]);
      items_.push_back({tuple[0], tuple[1], tuple});
    }
    pointers_.assign(addresses.data(), addresses.data() + addresses.size());
  }

  void reserve(std::size_t count) {
    items_.reserve(count);
    pointers_.reserve(count);
  }
  void add(nb::handle slot, nb::object grad, std::int64_t pointer) {
    items_.push_back({nb::borrow(slot), std::move(grad), {}});
    pointers_.push_back(pointer);
  }
  const std::vector<std::int64_t>& pointers() const { return pointers_; }
  std::size_t size() const { return items_.size(); }

  nb::object item(Py_ssize_t place) const {
    if (place < 0 || static_cast<std::size_t>(place) >= items_.size()) throw nb::index_error();
    const Item& item = items_[static_cast<std::size_t>(place)];
    return item.whole.is_valid() ? item.whole
                                 : nb::make_tuple(item.slot, item.grad, item.grad, nb::none());
  }

  // They are the engine's now.
  void hand_over() const {
    for (const Item& item : items_) gradient_state(item.slot).dirty = 0;
  }

  bool all_are_there() const {
    for (const Item& item : items_) {
      if (item.whole.is_valid() && (item.grad.is_none() || !item.grad.is(item.whole[2]))) {
        return false;
      }
      GradientState& slot = gradient_state(item.slot);
      if (!is_none(slot.aside) || !is_none(slot.sparse_dim)) return false;
      if (!checked(grad_of(slot)).is(item.grad)) return false;
      slot.filled = 1;
    }
    return true;
  }

  int traverse(visitproc visit, void* arg) const {
    for (const Item& item : items_) {
      Py_VISIT(item.slot.ptr());
      Py_VISIT(item.grad.ptr());
      Py_VISIT(item.whole.ptr());
    }
    return 0;
  }
  void clear() { std::exchange(items_, {}); }

 private:
  struct Item {
    nb::object slot, grad;
    nb::object whole;  // null: (slot, grad, grad, None)
  };
  std::vector<Item> items_;
  std::vector<std::int64_t> pointers_;
};

// Finds out where the gradients of a bucket are, of one whose gradients are usually all reduced where they are.
class Gatherer {
 public:
  // plain: what native code may know of tensors of this type, or None. dtype, strided, device: torch's; code: the engine's
  // dtype.
  Gatherer(nb::list slots, nb::handle type, nb::handle plain, nb::object dtype, nb::object strided,
           nb::object device, int code)
      : slots_(std::move(slots)),
        dtype_(std::move(dtype)),
        strided_(std::move(strided)),
        device_(std::move(device)),
        code_(code) {
    for (const nb::handle slot : slots_) gradient_state(slot);
    if (!plain.is_none()) plain_.emplace(type, plain);
  }

  // Nothing if one of them is not to be reduced where it is.
  std::optional<Sent> gather() const {
    Sent sent;
    sent.reserve(slots_.size());
    for (const nb::handle slot : slots_) {
      const GradientState& state = gradient_state(slot);
      if (state.dirty == 0) return std::nullopt;
      nb::object grad = checked(grad_of(state));
      if (grad.is_none()) return std::nullopt;
      const std::optional<std::int64_t> pointer = address_of(grad);
      if (!pointer) return std::nullopt;
      sent.add(slot, std::move(grad), *pointer);
    }
    return sent;
  }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(slots_.ptr());
    return 0;
  }
  void clear() { slots_ = nb::list(); }

 private:
  // As WireForm.fits says, of a form that is reduced in place and contiguous.
  std::optional<std::int64_t> address_of(const nb::object& grad) const {
    if (plain_ && grad.type().is(plain_->type())) {
      const PlainMemory memory(*plain_, grad, true);
      if (!memory.usable() || memory.dtype() != code_ || plain_->excludes(grad)) return {};
      return reinterpret_cast<std::int64_t>(memory.data());
    }
    const bool fits = attribute(grad, gather_names->dtype).is(dtype_) &&
                      attribute(grad, gather_names->layout).is(strided_) &&
                      attribute(grad, gather_names->device).equal(device_) &&
                      answer(grad, gather_names->is_contiguous).ptr() == Py_True &&
                      answer(grad, gather_names->is_neg).ptr() == Py_False;
    if (!fits) return {};
    return nb::cast<std::int64_t>(answer(grad, gather_names->data_ptr));
  }

  nb::list slots_;
  std::optional<PlainType> plain_;
  nb::object dtype_, strided_, device_;
  int code_;
};

// Python runs signal handlers, which may raise, between any two things it does, but not within this: either the gradients are in
// flight and the list says so, or they are this rank's as before.
void launch(Engine& engine, nb::handle bucket, long long stamp, std::int64_t group, nb::handle sent,
            nb::handle absent, bool wake, nb::handle streams, nb::list works) {
  BucketState& state = bucket_state(bucket);
  const auto& native = nb::cast<const Sent&>(sent);
  works.append(engine.submit_prepared(group, native.pointers(), absent, wake, streams, sent));
  native.hand_over();
  state.launched = stamp;
}

// For Python's garbage collector.
template <typename Object>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Object>(self)->traverse(visit, arg) : 0;
}

template <typename Object>
int clear(PyObject* self) {
  nb::inst_ptr<Object>(self)->clear();
  return 0;
}

template <typename Object>
PyType_Slot collected[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<Object>)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear<Object>)},
                           {0, nullptr}};

}  // namespace

void register_launch(nb::module_& module) {
  gather_names = new GatherNames;
  nb::class_<Sent>(module, "Sent", nb::is_final(), nb::type_slots(collected<Sent>),
                   "What was sent of a bucket: a sequence of flights.Item.")
      .def(nb::init<const nb::list&, nb::handle>(), "items"_a, "pointers"_a)
      .def("__len__", &Sent::size)
      .def("__getitem__", &Sent::item, "place"_a)
      .def("all_are_there", &Sent::all_are_there,
           "Was every gradient reduced where it is, and is it still there? Then they are filled.");
  nb::class_<Gatherer>(module, "Gatherer", nb::is_final(), nb::type_slots(collected<Gatherer>),
                       "Finds out where the gradients of a bucket are.")
      .def(nb::init<nb::list, nb::handle, nb::handle, nb::object, nb::object, nb::object, int>(),
           "slots"_a, "type"_a, "plain"_a.none(), "dtype"_a, "strided"_a, "device"_a, "code"_a)
      .def("gather", &Gatherer::gather,
           "What to send, if all gradients can be reduced where they are; otherwise None.");
  module.def("launch", &launch, "engine"_a, "bucket"_a, "stamp"_a, "group"_a, "sent"_a, "absent"_a,
             "wake"_a, "streams"_a, "works"_a,
             "Submits a bucket's prepared group. The work is added to the list, the gradients are "
             "dirty no longer, and the bucket is launched in the pass `stamp`: all of that or, if "
             "this raises, nothing.");
}

}  // namespace hvdlite::python
