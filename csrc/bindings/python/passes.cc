#include "passes.h"

#include <algorithm>
#include <utility>

namespace hvdlite::python {

Passes::Before Passes::before(Gradient& gradient, Found found, bool holds_reduced) {
  switch (found) {
    case Found::kNothing:
      // The user has reset a gradient that was dirty, or had a reduced part.
      if (gradient.dirty || holds_reduced) return Before::kForget;
      gradient.fresh = true;
      return Before::kNothing;
    case Found::kFinished:
      return Before::kHoldReduced;
    case Found::kUnreduced:
      break;
  }
  return Before::kNothing;
}

Passes::After Passes::after(Gradient& gradient) {
  if (gradient.stamp == stamp_) {  // another part of the same gradient
    if (knows(gradient.bucket) && is_launched(gradient.bucket)) {
      gradient.dirty = added_later_ = true;
    }
    return After::kNothing;
  }
  gradient.stamp = stamp_;
  gradient.dirty = true;
  if (!eager_ || !knows(gradient.bucket)) return After::kNothing;
  return --at(gradient.bucket).missing == 0 ? After::kComplete : After::kCounted;
}

void Passes::forget(Gradient& gradient, bool zeros_are_left) {
  gradient.dirty = gradient.dirty && zeros_are_left;
  gradient.filled = gradient.fresh = false;
}

bool Passes::goes_on(Task task) {
  if (std::find(tasks_.begin(), tasks_.end(), task) == tasks_.end()) return false;
  task_ = task;
  return true;
}

bool Passes::is_one_too_many() const {
  return passes_per_step > 1 && backwards_ >= passes_per_step && suspended == 0;
}

void Passes::begin() {
  ++stamp_;
  running_ = true;
  added_later_ = false;
  local_ = suspended > 0 || backwards_ + 1 < passes_per_step;
  eager_ = planned_ && !local_ && !ever_nested_;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.members;
}

void Passes::enter(Task task, bool nested) {
  if (nested) {
    // A parameter that is used inside and outside of a torch.utils.checkpoint gets its gradient in parts. Its bucket is
    // launched at the end of the pass, when all parts have come.
    ever_nested_ = true;
    eager_ = false;
  }
  task_ = task;
  tasks_.push_back(task);
}

void Passes::finish() {
  unsettled_ = true;
  owed_ = !local_;
  local_gradients_ |= local_;
  task_ = kNoTask;
  tasks_.clear();
  if (suspended == 0) ++backwards_;
  running_ = false;
}

void Passes::rest_is_launched() {
  owed_ = local_gradients_ = given_up_ = false;
  ++turn_;
}

// If Ctrl-C comes before additions_are_launched(), settle() launches the buckets that are left, under the names of the same
// turn.
void Passes::begin_additions() {
  unsettled_ = true;
  ++stamp_;
}

void Passes::additions_are_launched() {
  added_later_ = false;
  ++turn_;
}

void Passes::abandon() {
  owed_ = unsettled_ = added_later_ = local_gradients_ = given_up_ = false;
  start_step();
}

bool Passes::any_missing() const {
  return std::any_of(buckets_.begin(), buckets_.end(),
                     [](const Bucket& bucket) { return bucket.missing != 0; });
}

void Passes::set_plan(std::vector<Bucket> buckets) {
  buckets_ = std::move(buckets);
  for (Bucket& bucket : buckets_) bucket.missing = bucket.members;
  planned_ = true;
}

void Passes::drop_plan() {
  buckets_.clear();
  planned_ = false;
}

void Passes::reset() {
  given_up_ |= local_gradients_;
  local_gradients_ = false;
}

}  // namespace hvdlite::python
