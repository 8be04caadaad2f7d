// Launches a bucket: collects its gradients' addresses, submits them, and checks afterwards whether the results lie in the
// gradients. Steps that need torch are in hvdlite/torch/in_flight.py.
// Thread: with the GIL held. Owns: references. Blocks: where torch does in the calls that make memory to send. Throws: the
// classes of hvdlite.errors, and what Python raises.

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine.h"
#include "pass_driver.h"

namespace hvdlite::python {

using namespace nb::literals;

namespace {

// The names of tensor attributes, interned.
struct GatherNames {
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* layout = PyUnicode_InternFromString("layout");
  PyObject* device = PyUnicode_InternFromString("device");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* stride = PyUnicode_InternFromString("stride");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* numel = PyUnicode_InternFromString("numel");
};
const GatherNames* gather_names;

nb::object attribute(nb::handle object, PyObject* name) {
  return checked(PyObject_GetAttr(object.ptr(), name));
}

nb::object answer(nb::handle object, PyObject* method) {
  return checked(PyObject_CallMethodNoArgs(object.ptr(), method));
}

// A Python object, and the GradientState in it.
struct GradientRef {
  nb::object object;
  GradientState* state;

  // Throws if the object is no GradientState.
  explicit GradientRef(nb::object gradient)
      : object(std::move(gradient)), state(&nb::cast<GradientState&>(object)) {}
  GradientState* operator->() const { return state; }
};

// What was sent of a bucket, in order. A gradient that is reduced in place is sent from its own memory.
class Sent {
 public:
  void reserve(std::size_t count) {
    items_.reserve(count);
    pointers_.reserve(count);
  }
  // The next member has no gradient on this rank.
  void add_absent() {
    if (!absent_) absent_ = std::make_unique<bool[]>(items_.capacity());
    absent_[items_.size()] = true;
  }
  // Adds a gradient that is reduced in place, or an item with memory of its own.
  void add(const GradientRef& gradient, nb::object grad, std::int64_t pointer) {
    items_.push_back({gradient, std::move(grad), {}});
    pointers_.push_back(pointer);
  }
  void add(const GradientRef& gradient, nb::tuple item) {
    pointers_.push_back(nb::cast<std::int64_t>(answer(item[2], gather_names->data_ptr)));
    items_.push_back({gradient, item[1], std::move(item)});
  }
  const std::vector<std::int64_t>& pointers() const { return pointers_; }
  // A flag for each member: does this rank lack its gradient? Null: it lacks none.
  const bool* absent() const { return absent_.get(); }
  nb::list numbers_of_absent() const {
    nb::list numbers;
    for (std::size_t i = 0; absent_ && i < items_.size(); ++i) {
      if (absent_[i]) numbers.append(i);
    }
    return numbers;
  }
  std::size_t size() const { return items_.size(); }

  nb::object item(Py_ssize_t place) const {
    if (place < 0 || static_cast<std::size_t>(place) >= items_.size()) throw nb::index_error();
    const Item& item = items_[static_cast<std::size_t>(place)];
    return item.whole.is_valid()
               ? item.whole
               : nb::make_tuple(item.gradient.object, item.grad, item.grad, nb::none());
  }

  // Marks the gradients as sent.
  void hand_over() const {
    for (const Item& item : items_) item.gradient->dirty = false;
  }

  // The numbers of items, from `first` on, that failed or whose results have to be copied to their gradients. Marks the others
  // as filled, except those for which no rank had a gradient. outcomes: from Engine.wait_many; empty if Ctrl-C came before the
  // submission.
  nb::list to_store(std::size_t first, const nb::list& outcomes) const {
    nb::list places;
    for (std::size_t i = first; i < std::min(items_.size(), outcomes.size()); ++i) {
      const nb::object outcome = outcomes[i];
      const bool reduced = PyLong_Check(outcome.ptr());
      if (reduced && nb::cast<int>(outcome) == 0)
        continue;  // no rank had a gradient, so there is none, as in a program of one process
      if (reduced && items_[i].is_there()) {
        items_[i].gradient->filled = true;
      } else {
        places.append(i);
      }
    }
    return places;
  }

  int traverse(visitproc visit, void* arg) const {
    for (const Item& item : items_) {
      Py_VISIT(item.gradient.object.ptr());
      Py_VISIT(item.grad.ptr());
      Py_VISIT(item.whole.ptr());
    }
    return 0;
  }
  void clear() { std::exchange(items_, {}); }

 private:
  struct Item {
    GradientRef gradient;
    nb::object grad;
    nb::object whole;  // null: (gradient, grad, grad, None)

    // Was the gradient reduced in place, and is it the parameter's whole gradient?
    bool is_there() const {
      if (whole.is_valid() && (grad.is_none() || !grad.is(whole[2]))) return false;
      return gradient->reduced_part.is_none() && gradient->sparse_dim.is_none() &&
             gradient->grad().is(grad);
    }
  };
  std::vector<Item> items_;
  std::vector<std::int64_t> pointers_;
  std::unique_ptr<bool[]> absent_;
};

// Finds the addresses of a bucket's gradients. For a gradient that cannot be reduced in place, lets torch make memory to send.
class Gatherer {
 public:
  // gradients and forms: of the members, in order. A form is a WireForm; this class reads from it what a gradient must be like
  // to be reduced in place. type, plain: the tensors' type, and its Plain or None. strided: torch's layout. wire_of(gradient,
  // form, grad): makes memory to send for a gradient, or for a missing one, and the context for decoding.
  Gatherer(const nb::list& gradients, const nb::list& forms, nb::handle type, nb::handle plain,
           nb::object strided, nb::object wire_of)
      : strided_(std::move(strided)), wire_of_(std::move(wire_of)) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      members_.push_back({GradientRef(gradients[i]), forms[i], forms[i].attr("dtype_in_place"),
                          forms[i].attr("memory"), forms[i].attr("strides"),
                          nb::cast<int>(forms[i].attr("dtype")),
                          nb::cast<bool>(forms[i].attr("is_contiguous"))});
    }
    if (!plain.is_none()) plain_.emplace(type, plain);
  }

  // Collects what to send for all members.
  Sent gather() const {
    Sent sent;
    sent.reserve(members_.size());
    for (const GatheredGradient& member : members_) {
      const GradientRef& gradient = member.gradient;
      nb::object grad = gradient->dirty ? gradient->grad() : nb::none();
      if (grad.is_none()) {
        if (gradient->dirty) gradient->forget();  // the user has reset it
        sent.add_absent();
      } else if (const auto pointer = address_of(member, grad)) {
        sent.add(gradient, std::move(grad), *pointer);
        continue;
      }
      const nb::tuple made = nb::cast<nb::tuple>(wire_of_(gradient.object, member.form, grad));
      sent.add(gradient, nb::make_tuple(gradient.object, grad, made[0], made[1]));
    }
    return sent;
  }

  int traverse(visitproc visit, void* arg) const {
    for (const GatheredGradient& member : members_) {
      Py_VISIT(member.gradient.object.ptr());
      Py_VISIT(member.form.ptr());
    }
    return 0;
  }
  void clear() { std::exchange(members_, {}); }

 private:
  struct GatheredGradient {
    GradientRef gradient;
    nb::object form;
    nb::object dtype_in_place;  // torch's dtype; None: the gradient is never reduced in place
    nb::object device;          // torch's device
    nb::object strides;         // of a gradient that is reduced in place
    int dtype;                  // the engine's code
    bool contiguous;            // are these the strides of a contiguous tensor?
  };

  // The address of a gradient that can be reduced in place.
  std::optional<std::int64_t> address_of(const GatheredGradient& member,
                                         const nb::object& grad) const {
    if (member.dtype_in_place.is_none()) return {};
    if (plain_ && member.contiguous && grad.type().is(plain_->type())) {
      const PlainMemory memory(*plain_, grad, true);
      if (!memory.usable() || memory.dtype() != member.dtype || plain_->excludes(grad)) return {};
      return reinterpret_cast<std::int64_t>(memory.data());
    }
    const bool fits = attribute(grad, gather_names->dtype).is(member.dtype_in_place) &&
                      attribute(grad, gather_names->layout).is(strided_) &&
                      // The user may have moved the parameter since the form was made.
                      attribute(grad, gather_names->device).equal(member.device) &&
                      lies_right(member, grad) &&
                      answer(grad, gather_names->is_neg).ptr() == Py_False;
    if (!fits) return {};
    const auto address = nb::cast<std::int64_t>(answer(grad, gather_names->data_ptr));
    // The gradient's storage was freed: WireForm.encode() refuses the gradient.
    if (address == 0 && nb::cast<std::int64_t>(answer(grad, gather_names->numel)) > 0) return {};
    return address;
  }

  static bool lies_right(const GatheredGradient& member, const nb::object& grad) {
    if (member.contiguous) return answer(grad, gather_names->is_contiguous).ptr() == Py_True;
    return answer(grad, gather_names->stride).equal(member.strides);
  }

  std::vector<GatheredGradient> members_;
  std::optional<PlainType> plain_;
  nb::object strided_, wire_of_;
};

// Between any two steps of Python code a signal handler may run and raise, but not within this function. So either the
// gradients are in flight and the list says so, or they are this rank's as before.
void launch(Engine& engine, PassDriver& reducer, int bucket, std::int64_t group, nb::handle sent,
            bool wake, nb::handle streams, double weight, bool notice, nb::list works) {
  const auto& native = nb::cast<const Sent&>(sent);
  works.append(engine.submit_prepared(group, native.pointers(), native.absent(), wake, streams,
                                      sent, weight, notice));
  native.hand_over();
  reducer.launched(bucket);
}

}  // namespace

void register_launch(nb::module_& module) {
  gather_names = new GatherNames;
  nb::class_<Sent>(module, "Sent", nb::is_final(), nb::type_slots(collected<Sent>))
      .def("__len__", &Sent::size)
      .def("__getitem__", &Sent::item, "place"_a)
      .def_prop_ro("absent", &Sent::numbers_of_absent)
      .def("to_store", &Sent::to_store, "first"_a, "outcomes"_a);
  nb::class_<Gatherer>(module, "Gatherer", nb::is_final(), nb::type_slots(collected<Gatherer>))
      .def(nb::init<const nb::list&, const nb::list&, nb::handle, nb::handle, nb::object,
                    nb::object>(),
           "gradients"_a, "forms"_a, "type"_a, "plain"_a.none(), "strided"_a, "wire_of"_a)
      .def("gather", &Gatherer::gather);
  module.def("launch", &launch, "engine"_a, "reducer"_a, "bucket"_a, "group"_a, "sent"_a, "wake"_a,
             "streams"_a, "weight"_a, "notice"_a, "works"_a);
}

}  // namespace hvdlite::python
