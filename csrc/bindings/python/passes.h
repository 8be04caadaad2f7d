// Decides what backward passes do to the gradients of one optimizer: which buckets are launched and when, and which launches
// are still owed.
// Thread: one at a time. Owns: the counts of the buckets. Blocks: never. Throws: std::bad_alloc.
//
// A pure machine, without Python, a framework or the engine. PassDriver reports events to it and carries out its answers. It
// can be copied. A pass is one backward with the backwards nested in it; each of these backwards is a task.
//
//   backward will add to a gradient: before() ----> kForget, kHoldReduced
//   backward has added to it: after() ------------> kCounted; kComplete: launch the bucket
//   the end of a task: is_of(), finish() ---------> owes(): launch the rest, launched() for each, rest_is_launched()
//   all results are stored: settled() ------------> added_later(): launch the buckets with dirty gradients once more
#pragma once

#include <cstddef>
#include <vector>

namespace hvdlite::python {

// One parameter's gradient. hvdlite.torch.parameter_gradient.ParameterGradient describes the members.
struct Gradient {
  int bucket = -1;      // its number; -1: in none
  long long stamp = 0;  // the last pass in which backward made it
  bool dirty = false;
  bool filled = false;
  bool fresh = false;
};

class Passes {
 public:
  using Task = long long;
  static constexpr Task kNoTask = -1;

  struct Bucket {
    int members = 0;
    bool on_gpu = false;
    int missing = 0;         // gradients of this pass that have not come yet
    long long launched = 0;  // the last pass in which it was launched
  };

  // What .grad holds when backward is about to add to it: nothing; zeros of a reset or an unreduced gradient; a finished
  // gradient.
  enum class Found { kNothing, kUnreduced, kFinished };
  // What the driver has to do first.
  enum class Before { kNothing, kForget, kHoldReduced };
  // What has happened to the gradient's bucket.
  enum class After { kNothing, kCounted, kComplete };

  // --- the hooks of one gradient; after() is called only in the current task ---
  static Before before(Gradient& gradient, Found found, bool holds_reduced);
  After after(Gradient& gradient);
  // The user has reset the gradient. Zeros in the place of an unreduced gradient are reduced like a gradient.
  static void forget(Gradient& gradient, bool zeros_are_left);

  // --- tasks and passes; for a hook in another task than the last hook, PassDriver calls these in order, up to enter() ---
  bool is_current(Task task) const { return task == task_; }
  // Does this task of the pass continue after a nested one? Then it becomes the current task.
  bool goes_on(Task task);
  // Did an earlier pass never end?
  bool was_left(bool nested) const { return running_ && !nested; }
  bool running() const { return running_; }
  // Are there too many passes before a step?
  bool is_one_too_many() const;
  void begin();
  void enter(Task task, bool nested);
  // Is this the number of the running pass?
  bool is_of(long long stamp) const { return running_ && stamp == stamp_; }
  // The pass is over: no more hooks follow. If the pass is to be reduced, the launch of the buckets that it has not launched is
  // owed from now on until it is done, even if something raises in between.
  void finish();

  // --- the reduction ---
  void owe() { owed_ = unsettled_ = true; }
  // Begins a pass without a backward.
  void begin_by_hand() { ++stamp_; }
  bool is_launched(int bucket) const { return at(bucket).launched == stamp_; }
  void launched(int bucket) { at(bucket).launched = stamp_; }
  // May another rank have a gradient even of a parameter that is frozen now and has no gradient on this rank?
  bool may_be_anywhere() const { return local_gradients_ || given_up_; }
  void rest_is_launched();
  void settled() { unsettled_ = false; }
  // What is owed or in flight will never be done.
  void abandon();
  // Was something added to a gradient after its launch? Then one more pass, without a backward, sends the addition.
  bool added_later() const { return added_later_; }
  void begin_additions();
  void additions_are_launched();
  void forget_additions() { added_later_ = false; }
  bool any_missing() const;

  bool owes() const { return owed_; }
  bool unsettled() const { return unsettled_; }
  bool local_gradients() const { return local_gradients_; }
  long long stamp() const { return stamp_; }
  int turn() const { return turn_; }

  // --- the plan and the optimizer ---
  void set_plan(std::vector<Bucket> buckets);
  void drop_plan();
  bool planned() const { return planned_; }
  bool on_gpu(int bucket) const { return at(bucket).on_gpu; }
  int bucket_count() const { return static_cast<int>(buckets_.size()); }
  void start_step() { turn_ = backwards_ = 0; }
  // All gradients were reset, including unreduced ones.
  void reset();

  int passes_per_step = 1;
  int suspended = 0;  // > 0 inside no_sync()

 private:
  bool knows(int bucket) const { return static_cast<std::size_t>(bucket) < buckets_.size(); }
  const Bucket& at(int bucket) const { return buckets_[static_cast<std::size_t>(bucket)]; }
  Bucket& at(int bucket) { return buckets_[static_cast<std::size_t>(bucket)]; }

  std::vector<Bucket> buckets_;
  bool planned_ = false;
  // The current pass.
  Task task_ = kNoTask;      // the task whose hooks run now
  std::vector<Task> tasks_;  // all tasks of the pass
  long long stamp_ = 0;      // number of the pass
  bool running_ = false;
  bool local_ = false;  // is the pass local, so that it is not reduced?
  bool eager_ = false;  // may complete buckets be launched before the pass is over?
  bool ever_nested_ = false;
  bool added_later_ = false;
  // Work that is owed.
  bool owed_ = false;  // a pass is over, but not all its buckets were launched
  bool unsettled_ = false;
  bool local_gradients_ = false;  // some passes were not reduced yet
  bool given_up_ = false;         // such passes were reset since the last reduction
  // Counts since the last step or reset.
  int turn_ = 0;  // of reductions
  int backwards_ = 0;
};

}  // namespace hvdlite::python
