// What backward passes do to the gradients of one optimizer: which are made, which buckets of them are launched, what is owed.
// Thread: one at a time. Owns: the counts of the buckets. Blocks: never. Throws: std::bad_alloc.
//
// A pure machine: it knows neither Python nor a framework nor the engine. It is told what happens and says what is to be done;
// PassDriver does it. It can be copied. A pass is one backward with the backwards that are nested in it, each of them a task.
//
//   before() a gradient is added to, after() it --> kForget, kHoldReduced; kCounted, kComplete: launch the bucket
//   the end of a task: is_of(), finish() ---------> owes(): launch the rest, launched() for each, rest_is_launched()
//   all results are there: settled() -------------> added_later(): launch the dirty ones once more
#pragma once

#include <cstddef>
#include <vector>

namespace hvdlite::python {

// One parameter's gradient. hvdlite.torch.gradients.ParameterGradient says what the members mean.
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
    int missing = 0;         // gradients of this pass that are not there yet
    long long launched = 0;  // the last pass in which it was launched
  };

  // What .grad holds when backward is about to add to it: nothing, what the reset or this rank has left, something finished.
  enum class Found { kNothing, kUnreduced, kFinished };
  // What is to be done first.
  enum class Before { kNothing, kForget, kHoldReduced };
  // What has become of its bucket.
  enum class After { kNothing, kCounted, kComplete };

  // --- the hooks of one gradient; after() only in the current task ---
  static Before before(Gradient& gradient, Found found, bool holds_reduced);
  After after(Gradient& gradient);
  // The user has reset it. Zeros that are left where something unreduced was are reduced like that.
  static void forget(Gradient& gradient, bool zeros_are_left);

  // --- tasks and passes, in the order in which a hook of another task asks ---
  bool is_current(Task task) const { return task == task_; }
  // Is it a task of this pass that goes on after a nested one? Then it is the current one.
  bool goes_on(Task task);
  // Did the pass that ran never end?
  bool was_left(bool nested) const { return running_ && !nested; }
  bool running() const { return running_; }
  // Are there too many passes before a step?
  bool is_one_too_many() const;
  void begin();
  void enter(Task task, bool nested);
  // Does an end that waits since this pass concern the one that runs?
  bool is_of(long long stamp) const { return running_ && stamp == stamp_; }
  // There are no more hooks. What is to be done now is owed until it is done, whatever is raised meanwhile.
  void finish();

  // --- the reduction ---
  void owe() { owed_ = unsettled_ = true; }
  // Without a backward.
  void begin_by_hand() { ++stamp_; }
  bool is_launched(int bucket) const { return at(bucket).launched == stamp_; }
  void launched(int bucket) { at(bucket).launched = stamp_; }
  // May any gradient be on some rank, though there is none here and its parameter is frozen?
  bool may_be_anywhere() const { return local_gradients_ || given_up_; }
  void rest_is_launched();
  void settled() { unsettled_ = false; }
  // Was something added to a gradient after it was launched? Then it is sent in a pass of its own.
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
  // The gradients were reset, also those that were not reduced.
  void reset();

  int passes_per_step = 1;
  int suspended = 0;  // > 0 inside no_sync()

 private:
  bool knows(int bucket) const { return static_cast<std::size_t>(bucket) < buckets_.size(); }
  const Bucket& at(int bucket) const { return buckets_[static_cast<std::size_t>(bucket)]; }
  Bucket& at(int bucket) { return buckets_[static_cast<std::size_t>(bucket)]; }

  std::vector<Bucket> buckets_;
  bool planned_ = false;
  // The pass.
  Task task_ = kNoTask;      // whose hooks run at present
  std::vector<Task> tasks_;  // those of the pass
  long long stamp_ = 0;      // number of the pass
  bool running_ = false;
  bool local_ = false;  // is it not to be reduced?
  bool eager_ = false;  // may complete buckets be launched before it is over?
  bool ever_nested_ = false;
  bool added_later_ = false;
  // What is owed.
  bool owed_ = false;  // a pass is over but not all its buckets were launched
  bool unsettled_ = false;
  bool local_gradients_ = false;  // passes were not reduced yet
  bool given_up_ = false;         // such passes were reset since the last reduction
  // Counts since the last step or reset.
  int turn_ = 0;  // of reductions
  int backwards_ = 0;
};

}  // namespace hvdlite::python
