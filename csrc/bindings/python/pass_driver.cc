#include "pass_driver.h"

#include <utility>
#include <vector>

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

Passes::Found found(const GradientState& gradient, nb::handle grad) {
  if (grad.is_none()) return Passes::Found::kNothing;
  return gradient.dirty || gradient.is_as_reset(grad) ? Passes::Found::kUnreduced
                                                      : Passes::Found::kFinished;
}

// Does the predicate hold for any gradient of a bucket?
template <typename Predicate>
bool any_of(nb::handle bucket, Predicate is_so) {
  for (const nb::handle gradient : bucket.attr("gradients")) {
    if (is_so(nb::cast<const GradientState&>(gradient))) return true;
  }
  return false;
}

}  // namespace

PassDriver::PassDriver(nb::object current_task, nb::object is_nested)
    : current_task_(std::move(current_task)), is_nested_(std::move(is_nested)) {}

// Calls a method of the derived Python class.
template <typename... Args>
nb::object PassDriver::ask(const char* method, Args... args) {
  return nb::find(*this).attr(method)(args...);
}

Passes::Task PassDriver::current_task() const {
  const nb::object task = checked(PyObject_CallNoArgs(current_task_.ptr()));
  const Task number = PyLong_AsLongLong(task.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

bool PassDriver::is_nested(bool leaving) const { return nb::cast<bool>(is_nested_(leaving)); }

// --- hooks ----------------------------------------------------------------------------------------------------------

void PassDriver::before(GradientState& gradient) {
  const Locked locked(lock);
  if (unsettled()) settle();
  const nb::object grad = gradient.grad();
  switch (Passes::before(gradient, found(gradient, grad), !gradient.reduced_part.is_none())) {
    case Before::kNothing:
      return;
    case Before::kForget:
      gradient.forget();
      break;
    case Before::kHoldReduced:
      ask("_hold_reduced", nb::find(gradient), grad);
      break;
  }
  gradient.fresh = true;
}

// Backward has added to the gradient. So even if Ctrl-C raises before the gradient is counted, the gradient is dirty.
void PassDriver::after(GradientState& gradient) {
  const Locked locked(lock);
  const long long stamp = gradient.stamp;
  try {
    count(gradient);
  } catch (...) {
    if (gradient.stamp == stamp) gradient.dirty = true;
    throw;
  }
}

void PassDriver::count(GradientState& gradient) {
  const Task task = current_task();
  if (!is_current(task)) change_task(task, gradient);
  gradient.move_in();
  const After change = Passes::after(gradient);
  if (change == After::kNothing) return;
  const int bucket = gradient.bucket;
  if (on_gpu(bucket)) buckets[bucket].attr("see_stream")();
  if (change == After::kComplete) launch(bucket, true);
}

// The hook runs in another graph task than the last hook.
void PassDriver::change_task(Task task, GradientState& gradient) {
  if (goes_on(task)) return;
  const bool nested = is_nested(false);
  if (was_left(nested)) settle();
  if (!running()) begin_pass(gradient);
  watch(task, nested);
}

// The first gradient of a pass has come.
void PassDriver::begin_pass(GradientState& gradient) {
  if (is_one_too_many()) {
    if (!gradient.reduced_part.is_none()) ask("_refuse_pass", nb::find(gradient));
    start_step();  // the user reset the gradients without a call that tells us
  }
  ask("_use_engine");
  begin();
}

void PassDriver::watch(Task task, bool nested) {
  enter(task, nested);
  ask("_watch", stamp(), nested);  // if nothing reports the end of the task, settle() does the work
}

// --- the end of a pass ----------------------------------------------------------------------------------------------

void PassDriver::task_ended(long long stamp) {
  if (!is_of(stamp)) return;
  finish();
  if (!owes()) return settled();
  reduce(true);
  ask("_require_no_tangents");
}

void PassDriver::task_left(long long stamp) {
  if (!is_of(stamp)) return;
  const Task task = current_task();
  if (task == kNoTask) return task_lost(stamp);
  if (!goes_on(task)) watch(task, is_nested(true));
}

void PassDriver::task_lost(long long stamp) {
  if (!is_of(stamp)) return;
  finish();
  if (!owes()) return;
  if (!planned())
    ask("_plan");  // planning waits for other ranks, but without it they could not continue
  launch_rest();
}

// --- the reduction --------------------------------------------------------------------------------------------------

void PassDriver::reduce(bool strict) {
  if (!planned()) ask("_plan");
  owe();
  launch_rest();
  finish_launched(strict);
  if (strict && any_missing()) ask("_require_hooks");
}

bool PassDriver::is_dirty(int bucket) const {
  return any_of(buckets[bucket], [](const GradientState& gradient) { return gradient.dirty; });
}

// May some rank have a gradient for the bucket? A parameter that is frozen now may have one from an unreduced pass.
bool PassDriver::concerns_somebody(int bucket) const {
  return may_be_anywhere() || any_of(buckets[bucket], [](const GradientState& gradient) {
           return gradient.dirty || nb::cast<bool>(gradient.param.attr("requires_grad"));
         });
}

void PassDriver::launch(int bucket, bool wake) { ask("_launch", bucket, wake); }

void PassDriver::launch_rest() {
  for (int bucket = 0; bucket < bucket_count(); ++bucket) {
    if (!is_launched(bucket) && concerns_somebody(bucket)) launch(bucket, false);
  }
  ask("_begin_check");
  rest_is_launched();
}

// Waits for all launched buckets. Then reduces what was added to gradients after their launch.
void PassDriver::finish_launched(bool strict) {
  ask("_wait", strict);
  if (!added_later()) return;
  begin_additions();
  for (int bucket = 0; bucket < bucket_count(); ++bucket) {
    if (is_dirty(bucket)) launch(bucket, false);
  }
  additions_are_launched();
  ask("_wait", strict);
}

void PassDriver::settle() {
  if (running()) finish();
  ask("restore");
  if (!unsettled()) return;
  if (nb::cast<bool>(ask("_has_lost_engine"))) return abandon();
  if (owes()) {
    reduce(false);
  } else {
    finish_launched(false);
  }
  ask("_merge_rest");
}

// --- the plan -------------------------------------------------------------------------------------------------------

void PassDriver::set_plan(nb::list made) {
  drop_plan();
  std::vector<Bucket> counts;
  for (const nb::handle bucket : made) {
    counts.push_back({.members = static_cast<int>(nb::len(nb::object(bucket.attr("gradients")))),
                      .on_gpu = nb::cast<int>(bucket.attr("device")) != HVDLITE_DEVICE_CPU});
  }
  // No signal handler runs from here on, so buckets and gradients always fit together.
  buckets = std::move(made);
  Passes::set_plan(std::move(counts));
  for (int bucket = 0; bucket < bucket_count(); ++bucket) number_gradients(bucket, bucket);
}

void PassDriver::drop_plan() {
  for (int bucket = 0; bucket < bucket_count(); ++bucket) number_gradients(bucket, -1);
  buckets = nb::list();
  Passes::drop_plan();
}

void PassDriver::number_gradients(int bucket, int number) {
  for (const nb::handle gradient : buckets[bucket].attr("gradients")) {
    nb::cast<GradientState&>(gradient).bucket = number;
  }
}

int PassDriver::traverse(visitproc visit, void* arg) const {
  Py_VISIT(current_task_.ptr());
  Py_VISIT(is_nested_.ptr());
  Py_VISIT(buckets.ptr());
  Py_VISIT(lock.ptr());
  return 0;
}

// Keeps the other references: a hook may be called until it is gone.
void PassDriver::clear() {
  buckets = nb::list();
  Passes::drop_plan();
}

void register_pass_driver(nb::module_& module) {
  nb::class_<Passes>(module, "Passes")
      .def("launched", &Passes::launched, "bucket"_a)
      .def("settled", &Passes::settled)
      .def("forget_additions", &Passes::forget_additions)
      .def("begin_by_hand", &Passes::begin_by_hand)
      .def("start_step", &Passes::start_step)
      .def("reset", &Passes::reset)
      .def_prop_ro("running", &Passes::running)
      .def_prop_ro("unsettled", &Passes::unsettled)
      .def_prop_ro("turn", &Passes::turn)
      .def_prop_ro("local_gradients", &Passes::local_gradients)
      .def_rw("passes_per_step", &Passes::passes_per_step)
      .def_rw("suspended", &Passes::suspended);
  nb::class_<PassDriver, Passes>(module, "PassDriver", nb::type_slots(collected<PassDriver>))
      .def(nb::init<nb::object, nb::object>(), "current_task"_a, "is_nested"_a)
      .def("task_ended", &PassDriver::task_ended, "stamp"_a)
      .def("task_left", &PassDriver::task_left, "stamp"_a)
      .def("task_lost", &PassDriver::task_lost, "stamp"_a)
      .def("reduce", &PassDriver::reduce, "strict"_a)
      .def("settle", &PassDriver::settle)
      .def("set_plan", &PassDriver::set_plan, "made"_a)
      .def("drop_plan", &PassDriver::drop_plan)
      .def_ro("buckets", &PassDriver::buckets)
      .def_rw("lock", &PassDriver::lock, nb::for_setter(nb::arg("value").none()));
}

}  // namespace hvdlite::python
