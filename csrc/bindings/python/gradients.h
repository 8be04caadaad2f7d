// The part of torch's DistributedOptimizer that runs once for each gradient in each pass: types that hvdlite.torch derives its
// classes from, and the hooks that autograd calls. What is done with the gradients of a bucket together is in launch.cc.
// Thread: with the GIL held, which nothing here gives away. Owns: references, as any Python object does. Blocks: no.
// Throws: nothing; as CPython's own types it sets Python's error and returns null.
//
// What is done here is the usual case of Reducer._before and Reducer._after in hvdlite/torch, to the letter. Whatever else may
// be the case is left to these methods, before anything was changed.
// Nothing is known of torch but the attributes of a tensor that Python sees.
#pragma once

#include <nanobind/nanobind.h>

namespace hvdlite::python {

// The state of one parameter's gradient; hvdlite.torch.slots.Slot says what the members mean. A null object reads as None.
struct GradientState {
  PyObject_HEAD PyObject* param;
  PyObject* bucket;
  PyObject* aside;
  PyObject* place;
  PyObject* sparse_dim;
  PyObject* zeroed;
  long long zeroed_version;
  long long stamp;
  char dirty;
  char filled;
  char fresh;
};

// What the hooks look at of a bucket (hvdlite.torch.flights.Bucket).
struct BucketState {
  PyObject_HEAD long long missing;
  long long launched;
  int device;
};

// What the hooks look at of the pass that is running (hvdlite.torch.reducer.Reducer).
struct PassState {
  PyObject_HEAD PyObject* current_task;  // tells the number of the graph task that this thread runs
  long long task;
  long long stamp;
  char eager;
  char unsettled;
};

// Memory that will be read soon, which the processor is to fetch while other things are done. Addresses only: if what lay there
// is gone by then, nothing is gained and nothing lost. All zeros: nothing to fetch.
struct FetchAhead {
  static constexpr int kMost = 20;
  int count;
  const void* lines[kMost];

  void add(const void* memory, std::size_t bytes);
  void operator()() const {
    for (int i = 0; i < count; ++i) __builtin_prefetch(lines[i]);
  }
};

// Called by autograd for one parameter, before or after it adds to the gradient. Calls `otherwise` where it knows no answer.
struct GradientHook {
  PyObject_HEAD vectorcallfunc call;
  PassState* pass;
  GradientState* slot;
  PyObject* otherwise;
  FetchAhead fetch_ahead;
};

// A new reference to the parameter's .grad, or null with Python's error set: a slot whose __init__ was not reached, or that is
// being cleared, has no parameter.
PyObject* grad_of(const GradientState& slot);

// The state in an object of hvdlite.torch's. Throw TypeError if it is none of them.
GradientState& gradient_state(nanobind::handle slot);
BucketState& bucket_state(nanobind::handle bucket);

}  // namespace hvdlite::python
