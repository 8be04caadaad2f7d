// Passes by itself: what one optimizer's gradients go through, told event by event; and every order of small passes.
#include "bindings/python/passes.h"

#include <string>
#include <utility>
#include <vector>

#include "harness.h"

namespace hvdlite::python {
namespace {

using After = Passes::After;
using Before = Passes::Before;
using Found = Passes::Found;

constexpr Passes::Task kOuter = 7, kInner = 8;

// Does what Passes says, as PassDriver does. What backward adds to a gradient is a number here, 1 for each time.
struct Job {
  Passes passes;
  std::vector<Gradient> gradients;
  std::vector<int> here, sent;  // of each gradient: what only this rank has, and what is launched
  std::vector<int> launches;    // the buckets in order

  explicit Job(int count) : gradients(count), here(count), sent(count) {}

  // A bucket of so many gradients for each number.
  void plan(const std::vector<int>& members) {
    std::vector<Passes::Bucket> buckets;
    std::size_t next = 0;
    for (const int count : members) {
      for (int i = 0; i < count; ++i) {
        gradients[next++].bucket = static_cast<int>(buckets.size());
      }
      buckets.push_back({.members = count});
    }
    passes.set_plan(std::move(buckets));
  }

  void launch(int bucket) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].bucket != bucket || !gradients[i].dirty) continue;
      gradients[i].dirty = false;
      sent[i] += std::exchange(here[i], 0);
    }
    passes.launched(bucket);
    launches.push_back(bucket);
  }

  void enter(Passes::Task task, bool nested) {
    if (passes.is_current(task) || passes.goes_on(task)) return;
    if (passes.was_left(nested)) settle();
    if (!passes.running()) passes.begin();
    passes.enter(task, nested);
  }

  After add(std::size_t gradient, Passes::Task task = kOuter, bool nested = false) {
    enter(task, nested);
    ++here[gradient];
    const After change = passes.after(gradients[gradient]);
    if (change == After::kComplete) launch(gradients[gradient].bucket);
    return change;
  }

  bool dirty(int bucket) const {
    for (const Gradient& gradient : gradients) {
      if (gradient.bucket == bucket && gradient.dirty) return true;
    }
    return false;
  }

  void reduce() {
    passes.owe();
    for (int bucket = 0; bucket < passes.bucket_count(); ++bucket) {
      if (!passes.is_launched(bucket)) launch(bucket);
    }
    passes.rest_is_launched();
    land();
  }

  void land() {
    passes.settled();
    if (!passes.added_later()) return;
    passes.begin_additions();
    for (int bucket = 0; bucket < passes.bucket_count(); ++bucket) {
      if (dirty(bucket)) launch(bucket);
    }
    passes.additions_are_launched();
    passes.settled();
  }

  void end() {
    passes.finish();
    if (passes.owes()) return reduce();
    passes.settled();
  }

  void settle() {
    if (passes.running()) passes.finish();
    if (!passes.unsettled()) return;
    if (passes.owes()) return reduce();
    land();
  }
};

TEST(a_bucket_is_launched_with_its_last_gradient) {
  Job job(3);
  job.plan({2, 1});
  EXPECT(job.add(1) == After::kCounted);
  EXPECT(job.gradients[1].dirty && job.launches.empty());
  EXPECT(job.add(0) == After::kComplete);
  EXPECT(!job.gradients[1].dirty && job.launches == std::vector{0});
  job.end();
  EXPECT((job.launches == std::vector{0, 1}));
  EXPECT(job.passes.turn() == 1 && !job.passes.unsettled() && !job.passes.owes());
  EXPECT(job.passes.any_missing());
}

TEST(without_a_plan_nothing_is_launched_before_the_pass_is_over) {
  Job job(1);
  EXPECT(job.add(0) == After::kNothing);
  EXPECT(job.gradients[0].dirty && !job.passes.planned());
  job.passes.finish();
  EXPECT(job.passes.owes());
  job.plan({1});
  job.reduce();
  EXPECT(job.sent[0] == 1);
  job.add(0);
  EXPECT((job.launches == std::vector{0, 0}));
  job.passes.drop_plan();
  EXPECT(!job.passes.planned() && job.passes.bucket_count() == 0);
}

TEST(a_gradient_in_parts_counts_once) {
  Job job(2);
  job.plan({2});
  job.add(0);
  EXPECT(job.add(0) == After::kNothing);
  EXPECT(job.launches.empty() && !job.passes.added_later());
  EXPECT(job.add(1) == After::kComplete);
}

TEST(what_is_added_after_a_launch_is_launched_once_more) {
  Job job(2);
  job.plan({1, 1});
  job.add(0);
  EXPECT(job.add(0) == After::kNothing);
  EXPECT(job.gradients[0].dirty && job.passes.added_later());
  job.end();
  EXPECT((job.launches == std::vector{0, 1, 0}));
  EXPECT(job.sent[0] == 2 && job.passes.turn() == 2 && !job.passes.added_later());
}

TEST(additions_are_owed_until_they_are_launched) {
  Job job(1);
  job.plan({1});
  job.add(0);
  job.add(0);
  job.passes.finish();
  job.passes.rest_is_launched();
  job.passes.settled();
  job.passes.begin_additions();  // Ctrl-C comes here
  EXPECT(job.passes.unsettled() && job.passes.turn() == 1);
  job.settle();
  EXPECT(job.sent[0] == 2 && job.passes.turn() == 2);
}

TEST(nested_tasks_belong_to_the_pass_and_launch_nothing) {
  Job job(2);
  job.plan({1, 1});
  EXPECT(job.add(0, kOuter) == After::kComplete);
  EXPECT(job.add(1, kInner, true) == After::kNothing);
  EXPECT(job.passes.is_current(kInner) && !job.passes.was_left(true));
  EXPECT(job.passes.goes_on(kOuter) && job.passes.is_current(kOuter));
  EXPECT(!job.passes.goes_on(9));
  job.end();
  EXPECT((job.launches == std::vector{0, 1}));
  EXPECT(!job.passes.goes_on(kOuter));
  EXPECT(job.add(0) == After::kNothing);  // nor do the passes that come after
}

TEST(a_pass_that_never_ended_is_settled_by_the_next) {
  Job job(2);
  job.plan({2});
  job.add(0, kOuter);
  EXPECT(job.passes.was_left(false));
  job.add(1, kInner);
  EXPECT(job.sent[0] == 1 && job.sent[1] == 0);
  EXPECT(job.launches == std::vector{0});
  job.end();
  EXPECT(job.sent[1] == 1);
}

TEST(an_end_of_another_pass_concerns_nobody) {
  Job job(1);
  job.plan({1});
  job.add(0);
  const long long first = job.passes.stamp();
  EXPECT(job.passes.is_of(first) && !job.passes.is_of(first + 1));
  job.end();
  EXPECT(!job.passes.is_of(first));
  job.add(0);
  EXPECT(!job.passes.is_of(first) && job.passes.is_of(job.passes.stamp()));
}

TEST(passes_before_the_last_of_a_step_are_kept_back) {
  Job job(1);
  job.plan({1});
  job.passes.passes_per_step = 2;
  job.add(0);
  job.end();
  EXPECT(job.launches.empty() && job.passes.local_gradients() && !job.passes.unsettled());
  EXPECT(job.passes.may_be_anywhere() && !job.passes.is_one_too_many());
  job.add(0);
  EXPECT(job.sent[0] == 2);
  job.end();
  EXPECT(!job.passes.local_gradients() && job.passes.is_one_too_many());
  job.passes.start_step();
  EXPECT(!job.passes.is_one_too_many() && job.passes.turn() == 0);
}

TEST(suspended_passes_are_kept_back_and_do_not_count) {
  Job job(1);
  job.plan({1});
  job.passes.passes_per_step = 2;
  job.passes.suspended = 1;
  for (int i = 0; i < 3; ++i) {
    job.add(0);
    job.end();
  }
  EXPECT(!job.passes.is_one_too_many());
  job.passes.suspended = 0;
  job.add(0);
  job.end();
  EXPECT(job.launches.empty());
  job.add(0);
  EXPECT(job.sent[0] == 5);
}

TEST(what_was_kept_back_and_reset_may_still_be_on_other_ranks) {
  Job job(1);
  job.plan({1});
  job.passes.suspended = 1;
  job.add(0);
  job.end();
  job.passes.reset();
  job.passes.suspended = 0;
  EXPECT(!job.passes.local_gradients() && job.passes.may_be_anywhere());
  job.add(0);
  job.end();
  EXPECT(!job.passes.may_be_anywhere());
}

TEST(a_pass_whose_job_has_ended_is_abandoned) {
  Job job(3);
  job.plan({1, 2});
  job.add(0);
  EXPECT(job.launches.size() == 1);
  job.passes.finish();
  EXPECT(job.passes.owes() && job.passes.unsettled());
  job.passes.abandon();
  EXPECT(!job.passes.owes() && !job.passes.unsettled() && !job.passes.running());
  job.passes.reset();
  job.passes.start_step();
  job.add(1);
  EXPECT(!job.passes.is_one_too_many() && job.passes.turn() == 0);
  job.passes.finish();
  job.reduce();
  EXPECT(job.sent[1] == 1);
}

TEST(a_pass_by_hand_launches_all_buckets) {
  Job job(2);
  job.plan({1, 1});
  job.add(0);
  job.end();
  EXPECT(job.passes.is_launched(0));
  job.passes.begin_by_hand();
  EXPECT(!job.passes.is_launched(0) && !job.passes.is_launched(1));
}

TEST(what_is_finished_is_set_aside_and_what_was_reset_forgotten) {
  Gradient clean, dirty{.dirty = true, .filled = true};
  EXPECT(Passes::before(clean, Found::kFinished, false) == Before::kHoldReduced && !clean.fresh);
  EXPECT(Passes::before(clean, Found::kUnreduced, false) == Before::kNothing && !clean.fresh);
  EXPECT(Passes::before(clean, Found::kNothing, true) == Before::kForget && !clean.fresh);
  EXPECT(Passes::before(dirty, Found::kNothing, false) == Before::kForget && !dirty.fresh);
  EXPECT(Passes::before(clean, Found::kNothing, false) == Before::kNothing && clean.fresh);
  Passes::forget(dirty, true);  // zeros, where other ranks may have none
  EXPECT(dirty.dirty && !dirty.filled);
  Passes::forget(dirty, false);
  EXPECT(!dirty.dirty);
  Passes::forget(clean, true);
  EXPECT(!clean.dirty && !clean.fresh);
}

// Every order of at most so many events from here: gradients in the outer and an inner task, ends, and passes that are left.
void explore(const Job& job, std::vector<int> added, int depth, const std::string& path,
             int& ends) {
  Job done = job;
  if (done.passes.running()) done.end();
  EXPECT_OR(done.sent == added, path);
  EXPECT_OR(!done.passes.unsettled() && !done.passes.owes(), path);
  for (const Gradient& gradient : done.gradients) EXPECT_OR(!gradient.dirty, path);
  ++ends;
  if (depth == 0) return;
  for (std::size_t i = 0; i < added.size(); ++i) {
    std::vector<int> more = added;
    ++more[i];
    Job outer = job, inner = job, next = job;
    outer.add(i, kOuter);
    explore(outer, more, depth - 1, path + " outer" + std::to_string(i), ends);
    if (job.passes.running()) {
      inner.add(i, kInner, true);
      explore(inner, more, depth - 1, path + " inner" + std::to_string(i), ends);
    }
    next.add(i, 100 + depth);  // the pass before it is left, if it runs
    explore(next, more, depth - 1, path + " next" + std::to_string(i), ends);
  }
  if (job.passes.running()) explore(done, added, depth - 1, path + " end", ends);
}

TEST(in_any_order_all_that_backward_adds_is_sent_once) {
  Job job(3);
  job.plan({2, 1});
  int ends = 0;
  explore(job, {0, 0, 0}, 5, "", ends);
  EXPECT(ends > 10000);
}

}  // namespace
}  // namespace hvdlite::python
