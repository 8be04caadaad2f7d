#include "pass_driver.h"

#include <optional>
#include <utility>
#include <vector>

#include "native_types.h"

namespace hvdlite::python {

using namespace nb::literals;

namespace {

// Holds a lock of Python's, if there is one.
class Locked {
 public:
  explicit Locked(nb::handle lock) : lock_(lock) {
    if (!lock_.is_none()) lock_.attr("acquire")();
  }
  ~Locked() {
    if (!lock_.is_none()) Py_XDECREF(PyObject_CallMethod(lock_.ptr(), "release", nullptr));
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  nb::handle lock_;
};

Passes::Found found(const GradientState& slot, nb::handle grad) {
  if (grad.is_none()) return Passes::Found::kNothing;
  return slot.gradient.dirty || slot.is_as_reset(grad) ? Passes::Found::kUnreduced
                                                       : Passes::Found::kFinished;
}

// Is it so of any gradient of a bucket?
template <typename Predicate>
bool any_of(nb::handle bucket, Predicate is_so) {
  for (const nb::handle slot : bucket.attr("slots")) {
    if (is_so(gradient_state(slot))) return true;
  }
  return false;
}

}  // namespace

PassDriver::PassDriver(nb::object current_task, nb::object is_nested)
    : current_task_(std::move(current_task)), is_nested_(std::move(is_nested)), lock_(nb::none()) {}

// A method of the class that is derived from this one.
template <typename... Args>
nb::object PassDriver::ask(const char* method, Args... args) {
  return nb::find(*this).attr(method)(args...);
}

Passes::Task PassDriver::current_task() const {
  const nb::object task = checked(PyObject_CallNoArgs(current_task_.ptr()));
  const Passes::Task number = PyLong_AsLongLong(task.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

bool PassDriver::is_nested(bool leaving) const { return nb::cast<bool>(is_nested_(leaving)); }

// --- hooks ----------------------------------------------------------------------------------------------------------

void PassDriver::before(GradientState& slot) {
  const Locked locked(lock_);
  if (passes.unsettled()) settle();
  const nb::object grad = slot.grad();
  switch (Passes::before(slot.gradient, found(slot, grad), !is_none(slot.aside))) {
    case Passes::Before::kNothing:
      return;
    case Passes::Before::kForget:
      slot.forget();
      break;
    case Passes::Before::kSetAside:
      ask("_set_aside", nb::handle(reinterpret_cast<PyObject*>(&slot)), grad);
      break;
  }
  slot.gradient.fresh = true;
}

// What is raised before the gradient was counted (Ctrl-C) does not take back what backward has added to it.
void PassDriver::after(GradientState& slot) {
  const Locked locked(lock_);
  const long long stamp = slot.gradient.stamp;
  try {
    count(slot);
  } catch (...) {
    if (slot.gradient.stamp == stamp) slot.gradient.dirty = true;
    throw;
  }
}

void PassDriver::count(GradientState& slot) {
  const Passes::Task task = current_task();
  if (!passes.is_current(task)) enter(task, slot);
  slot.move_in();
  const Passes::After change = passes.after(slot.gradient);
  if (change == Passes::After::kNothing) return;
  const int bucket = slot.gradient.bucket;
  if (passes.bucket(bucket).on_gpu) buckets_[bucket].attr("see_stream")();
  if (change == Passes::After::kComplete) launch(bucket, true);
}

// A hook runs in another graph task than the last hook did.
void PassDriver::enter(Passes::Task task, GradientState& slot) {
  if (passes.goes_on(task)) return;
  const bool nested = is_nested(false);
  if (passes.was_left(nested)) settle();
  if (!passes.running()) begin(slot);
  watch(task, nested);
}

// The first gradient of a pass is there.
void PassDriver::begin(GradientState& slot) {
  if (passes.is_one_too_many()) {
    if (!is_none(slot.aside)) ask("_refuse_pass", nb::handle(reinterpret_cast<PyObject*>(&slot)));
    passes.start_step();  // the gradients were reset without telling us
  }
  ask("_use_engine");
  passes.begin();
}

void PassDriver::watch(Passes::Task task, bool nested) {
  passes.enter(task, nested);
  ask("_watch", passes.stamp(), nested);  // where nothing is told, settle() does what is to be done
}

// --- the end of a pass ----------------------------------------------------------------------------------------------

void PassDriver::task_ended(long long stamp) {
  if (!passes.is_of(stamp)) return;
  passes.finish();
  if (!passes.owes()) return passes.settled();
  reduce(true);
  ask("_require_no_tangents");
}

void PassDriver::task_left(long long stamp) {
  if (!passes.is_of(stamp)) return;
  const Passes::Task task = current_task();
  if (task == Passes::kNoTask) return task_lost(stamp);
  if (!passes.goes_on(task)) watch(task, is_nested(true));
}

void PassDriver::task_lost(long long stamp) {
  if (!passes.is_of(stamp)) return;
  passes.finish();
  if (!passes.owes()) return;
  if (!passes.planned()) ask("_plan");  // which does wait, but otherwise the others could not go on
  launch_rest();
}

// --- the reduction --------------------------------------------------------------------------------------------------

void PassDriver::reduce(bool strict) {
  if (!passes.planned()) ask("_plan");
  passes.owe();
  launch_rest();
  land(strict);
  if (strict && passes.any_missing()) ask("_require_hooks");
}

bool PassDriver::is_dirty(int bucket) const {
  return any_of(buckets_[bucket], [](GradientState& slot) { return slot.gradient.dirty; });
}

// May some rank have a gradient for the bucket? One that was frozen since may have it from a pass that was kept back.
bool PassDriver::concerns_somebody(int bucket) const {
  return passes.may_be_anywhere() || any_of(buckets_[bucket], [](GradientState& slot) {
           return slot.gradient.dirty ||
                  nb::cast<bool>(nb::handle(slot.param).attr("requires_grad"));
         });
}

void PassDriver::launch(int bucket, bool wake) { ask("_launch", bucket, wake); }

void PassDriver::launch_rest() {
  for (int bucket = 0; bucket < passes.buckets(); ++bucket) {
    if (!passes.is_launched(bucket) && concerns_somebody(bucket)) launch(bucket, false);
  }
  ask("_begin_check");
  passes.rest_is_launched();
}

// Waits for everything in flight, and reduces what was added to gradients after they were launched.
void PassDriver::land(bool strict) {
  ask("_wait", strict);
  if (!passes.added_later()) return;
  passes.begin_additions();
  for (int bucket = 0; bucket < passes.buckets(); ++bucket) {
    if (is_dirty(bucket)) launch(bucket, false);
  }
  passes.additions_are_launched();
  ask("_wait", strict);
}

void PassDriver::settle() {
  if (passes.running()) passes.finish();
  ask("restore");
  if (!passes.unsettled()) return;
  if (passes.owes()) {
    reduce(false);
  } else {
    land(false);
  }
  ask("_merge_rest");
}

// --- the plan -------------------------------------------------------------------------------------------------------

// Ctrl-C comes between neither of these two and what a gradient knows of its bucket.
void PassDriver::set_plan(nb::list buckets) {
  drop_plan();
  std::vector<Passes::Bucket> counts;
  for (const nb::handle bucket : buckets) {
    const nb::list slots = nb::cast<nb::list>(bucket.attr("slots"));
    counts.push_back({.members = static_cast<int>(slots.size()),
                      .on_gpu = nb::cast<int>(bucket.attr("device")) != HVDLITE_DEVICE_CPU});
  }
  buckets_ = std::move(buckets);
  passes.set_plan(std::move(counts));
  for (int bucket = 0; bucket < passes.buckets(); ++bucket) number_slots(bucket, bucket);
}

void PassDriver::drop_plan() {
  for (int bucket = 0; bucket < passes.buckets(); ++bucket) number_slots(bucket, -1);
  buckets_ = nb::list();
  passes.drop_plan();
}

void PassDriver::number_slots(int bucket, int number) {
  for (const nb::handle slot : buckets_[bucket].attr("slots")) {
    gradient_state(slot).gradient.bucket = number;
  }
}

int PassDriver::traverse(visitproc visit, void* arg) const {
  Py_VISIT(current_task_.ptr());
  Py_VISIT(is_nested_.ptr());
  Py_VISIT(buckets_.ptr());
  return 0;
}

// The rest stays: a hook may be called until it is gone.
void PassDriver::clear() { buckets_ = nb::list(); }

void register_pass_driver(nb::module_& module) {
  nb::class_<PassDriver>(module, "PassDriver", nb::type_slots(collected<PassDriver>),
                         "What the hooks of one optimizer's parameters do, pass by pass.")
      .def(nb::init<nb::object, nb::object>(), "current_task"_a, "is_nested"_a)
      .def("task_ended", &PassDriver::task_ended, "stamp"_a, "The pass is over.")
      .def("task_left", &PassDriver::task_left, "stamp"_a, "A nested task is over.")
      .def("task_lost", &PassDriver::task_lost, "stamp"_a, "The task never called back.")
      .def("reduce", &PassDriver::reduce, "strict"_a,
           "Reduces all gradients of this rank that were not, and waits for those in flight.")
      .def("settle", &PassDriver::settle,
           "Makes good what the end of the last pass did not do. Does nothing if all is well.")
      .def("set_plan", &PassDriver::set_plan, "buckets"_a, "Counts gradients in these buckets.")
      .def("drop_plan", &PassDriver::drop_plan, "There are no buckets any more.")
      .def(
          "launched", [](PassDriver& self, int bucket) { self.passes.launched(bucket); },
          "bucket"_a, "The bucket is launched in this pass.")
      .def(
          "settled", [](PassDriver& self) { self.passes.settled(); },
          "Nothing is in flight any more.")
      .def(
          "forget_additions", [](PassDriver& self) { self.passes.forget_additions(); },
          "What was added after a launch is not reduced by itself.")
      .def(
          "begin_by_hand", [](PassDriver& self) { self.passes.begin_by_hand(); },
          "A pass begins without a backward.")
      .def(
          "start_step", [](PassDriver& self) { self.passes.start_step(); }, "Counts anew.")
      .def(
          "reset", [](PassDriver& self) { self.passes.reset(); },
          "The gradients were reset, also those that were not reduced.")
      .def_prop_ro("buckets", &PassDriver::buckets)
      .def_prop_rw("lock", &PassDriver::lock, &PassDriver::set_lock, "lock"_a.none())
      .def_prop_ro("planned", [](const PassDriver& self) { return self.passes.planned(); })
      .def_prop_ro("running", [](const PassDriver& self) { return self.passes.running(); })
      .def_prop_ro("unsettled", [](const PassDriver& self) { return self.passes.unsettled(); })
      .def_prop_ro("turn", [](const PassDriver& self) { return self.passes.turn(); })
      .def_prop_ro("local_gradients",
                   [](const PassDriver& self) { return self.passes.local_gradients(); })
      .def_prop_rw(
          "passes_per_step", [](const PassDriver& self) { return self.passes.passes_per_step; },
          [](PassDriver& self, int passes) { self.passes.passes_per_step = passes; })
      .def_prop_rw(
          "suspended", [](const PassDriver& self) { return self.passes.suspended; },
          [](PassDriver& self, int suspended) { self.passes.suspended = suspended; });
}

}  // namespace hvdlite::python
