// Does what Passes says, for the gradients of one optimizer: the type that hvdlite.torch derives its Reducer from.
// Thread: with the GIL held; where parameters are on several devices, whose hooks autograd calls from a thread for each, a lock
// that Python sets keeps them apart. Owns: references to the plan's buckets, and as any Python object does. Blocks: where the
// methods of Reducer do. Throws: nb::python_error, what they raise. Ctrl-C raises only within them, and whatever is not done then
// settle() makes good.
#pragma once

#include "binding.h"
#include "gradients.h"
#include "passes.h"

namespace hvdlite::python {

class PassDriver : public Passes {
 public:
  // current_task tells the number of the graph task that this thread runs, is_nested(leaving) whether it runs inside another.
  PassDriver(nb::object current_task, nb::object is_nested);

  // --- hooks: called by autograd, for each parameter in each pass ---
  // Backward is about to add to this gradient (or would, if this is autograd.grad, which adds nothing).
  void before(GradientState& gradient);
  // Backward has added to it.
  void after(GradientState& gradient);

  // --- the end of a task, as EndOfTask in hvdlite/torch/passes.py tells it; stamp: of the pass in which it began to wait ---
  // The pass is over: backward() returns when this has.
  void task_ended(long long stamp);
  // A nested task is over. The end of the task around it, which is current now, has to be noticed as well.
  void task_left(long long stamp);
  // Backward raised, or nothing calls back: others may wait for this rank's part, so it is sent at once, but not waited for.
  void task_lost(long long stamp);

  // Reduces all gradients of this rank that were not, and waits for those in flight.
  void reduce(bool strict);
  // Makes good what the end of the last pass did not do. Does nothing if all is well.
  void settle();

  // The plan: buckets with `gradients` and `device`.
  void set_plan(nb::list made);
  void drop_plan();

  nb::list buckets;              // of the plan
  nb::object lock = nb::none();  // Python's; None: there is none

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
  void land(bool strict);
  void number_gradients(int bucket, int number);

  nb::object current_task_, is_nested_;
};

}  // namespace hvdlite::python
