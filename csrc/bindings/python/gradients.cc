#include "gradients.h"

#include "native_types.h"

namespace hvdlite::python {

namespace {

// The names of what is asked of a tensor, interned.
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
  // The engine may write where a dirty one lies, which shows in no version.
  zeroed = dirty ? nb::none() : now;
  aside = nb::none();
}

void GradientState::move_in() {
  if (!fresh || place.is_none())
    return;  // without a plan there are no places yet; it may come later
  fresh = false;
  place.attr("move_in")(param);
}

void GradientState::claim() {
  dirty = true;
  fresh = false;
  zeroed = nb::none();  // as in forget()
}

int GradientState::traverse(visitproc visit, void* arg) const {
  for (const nb::object* member : {&param, &aside, &place, &sparse_dim, &zeroed}) {
    Py_VISIT(member->ptr());
  }
  return 0;
}

void GradientState::clear() {
  for (nb::object* member : {&param, &aside, &place, &sparse_dim, &zeroed}) *member = nb::none();
}

void register_gradients(nb::module_& module) {
  gradient_names = new GradientNames;
  const auto or_none = nb::for_setter(nb::arg("value").none());
  nb::class_<GradientState>(module, "GradientState", nb::type_slots(collected<GradientState>),
                            "The state of one gradient.")
      .def(nb::init<>())
      .def_rw("param", &GradientState::param, or_none)
      .def_rw("aside", &GradientState::aside, or_none)
      .def_rw("place", &GradientState::place, or_none)
      .def_rw("sparse_dim", &GradientState::sparse_dim, or_none)
      .def_rw("bucket", &GradientState::bucket)
      .def_rw("stamp", &GradientState::stamp)
      .def_rw("dirty", &GradientState::dirty)
      .def_rw("filled", &GradientState::filled)
      .def_rw("fresh", &GradientState::fresh)
      .def("forget", &GradientState::forget, "The user has reset the gradient.")
      .def(
          "is_zero", [](const GradientState& self) { return self.is_as_reset(self.grad()); },
          "Is .grad as the reset has left it?")
      .def("move_in", &GradientState::move_in, "Offers the gradient its place, once.")
      .def("claim", &GradientState::claim,
           "What is in .grad is gradient of this rank alone, whoever put it there.");
}

}  // namespace hvdlite::python
