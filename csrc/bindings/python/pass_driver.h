// Carries out what Passes decides, for the gradients of one optimizer: the type from which hvdlite.torch derives Reducer.
// Thread: with the GIL held. If parameters are on several devices, autograd calls their hooks from one thread for each device,
// and a lock that Python sets serializes the hooks. Owns: references to the plan's buckets and others, as any Python object
// does. Blocks: where the methods of Reducer do. Throws: nb::python_error, as raised by those methods. Ctrl-C raises only in
// Python code that this class calls; settle() later does what was left undone.
#pragma once

#include "binding.h"
#include "gradients.h"
#include "passes.h"

namespace hvdlite::python {

class PassDriver : public Passes {
 public:
  // Two functions of hvdlite/torch/passes.py. current_task(): the number of the graph task that this thread runs.
  // is_nested(leaving): does that task run inside another task? leaving: is a task that ran inside that task being destroyed?
  PassDriver(nb::object current_task, nb::object is_nested);

  // --- hooks: called by autograd, for each parameter in each pass ---
  // Backward is about to add to this gradient. (autograd.grad calls this as well, but adds nothing.)
  void before(GradientState& gradient);
  // Backward has added to it.
  void after(GradientState& gradient);

  // --- the end of a task, which EndOfTask in hvdlite/torch/passes.py reports; stamp: the number of the task's pass ---
  // The pass is over. backward() returns only after this function.
  void task_ended(long long stamp);
  // A nested task is over. The task around it is current now, and its end has to be noticed as well.
  void task_left(long long stamp);
  // Backward raised, or nothing will report its end. Other ranks may wait for this rank's gradients, so launches the rest at
  // once. Does not wait for the results. If there is no plan, first plans with the other ranks, and waits for them.
  void task_lost(long long stamp);

  // Reduces all unreduced gradients of this rank, and waits for launched buckets.
  void reduce(bool strict);
  // Does what the end of the last pass has left undone. Usually nothing.
  void settle();

  // The plan: buckets with `gradients` and `device`.
  void set_plan(nb::list made);
  void drop_plan();

  nb::list buckets;              // of the plan
  nb::object lock = nb::none();  // a lock of Python's, or None

  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  template <typename... Args>
  nb::object ask(const char* method, Args... args);
  Task current_task() const;
  bool is_nested(bool leaving) const;
  void count(GradientState& gradient);
  void change_task(Task task, GradientState& gradient);
  void begin_pass(GradientState& gradient);
  void watch(Task task, bool nested);
  bool concerns_somebody(int bucket) const;
  bool is_dirty(int bucket) const;
  void launch(int bucket, bool wake);
  void launch_rest();
  void finish_launched(bool strict);
  void number_gradients(int bucket, int number);

  nb::object current_task_, is_nested_;
};

}  // namespace hvdlite::python
