// The life of the Python engine, and the life of operations: one submission, one wait, and works that were dropped in flight.
// Calls with plain tensors are in plain_calls.cc, and all other methods in engine_module.cc.

#include "engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>
#include <vector>

#include "work.h"

namespace hvdlite::python {

namespace {

// How long one wait runs before Python handles signals: Ctrl-C must take effect within half a second.
constexpr double kSliceSeconds = 0.1;

// The streams of requests on GPUs, each once. Null if there are none.
nb::object streams_of(const Requests& requests) {
  nb::object streams;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const hvdlite_request& request = requests.data()[i];
    if (request.device < 0) continue;
    const nb::object stream = nb::cast(reinterpret_cast<std::uintptr_t>(request.stream));
    if (!streams.is_valid()) streams = nb::list();
    if (!nb::cast<bool>(streams.attr("__contains__")(stream))) streams.attr("append")(stream);
  }
  return streams;
}

}  // namespace

// --- its life ---------------------------------------------------------------------------------------------------------

Engine::Engine(hvdlite_engine* engine) : engine_(engine), creator_(getpid()) {}

Engine::~Engine() {
  // In a forked child the engine's thread does not exist, and the engine belongs to the parent's job.
  if (getpid() != creator_) return;
  nb::gil_scoped_release release;
  // Shut down now. Otherwise whoever drops the last reference to the engine would shut it down, perhaps much later.
  hvdlite_engine_shutdown(engine_);
  hvdlite_engine_destroy(engine_);
}

void Engine::shutdown() {
  check_without_gil([&] { return hvdlite_engine_shutdown(engine_); });
  has_shut_down_ = true;
  // The operations have ended. After a failure the transport may still use their memory, so leak it.
  std::vector<nb::object> parked = std::exchange(dropped_, {});
  if (*hvdlite_failure_cause(engine_) == '\0') return;
  for (const nb::object& work : parked) Py_XINCREF(work_of(work).memory);
}

hvdlite_submission submission_of(std::span<const hvdlite_request> requests, bool wake) {
  hvdlite_submission what{};
  what.requests = requests.data();
  what.count = requests.size();
  what.wake = wake ? 1 : 0;
  return what;
}

// --- operations -------------------------------------------------------------------------------------------------------

// Keeps the GIL: a submission takes a short lock whose holder never waits for the GIL. If this thread released the GIL, it
// might have to wait for it for a whole switch interval.
std::int64_t Engine::start(const hvdlite_submission& what) {
  if (!dropped_.empty()) sweep();
  std::int64_t number = 0;
  check(hvdlite_submit(engine_, &what, &number));
  return number;
}

// No Python code runs between the submission and set_in_flight(), so no signal handler can come in between.
nb::object Engine::start_work(const hvdlite_submission& what, nb::object work, nb::object streams) {
  Work& its = work_of(work);
  const nb::object self = nb::find(*this);
  const std::int64_t number = start(what);
  set_in_flight(its, self, number, what.count, std::move(streams));
  return work;
}

nb::object Engine::submit(nb::handle requests, nb::handle memory, bool wake, nb::handle work) {
  const Requests natives(requests);
  nb::object its = work.is_none() ? new_work({}, nb::borrow(memory), false) : nb::borrow(work);
  if (work_of(its).stage != Work::Stage::kNew)
    throw nb::value_error("the work was submitted before");
  if (natives.size() == 0) return its;
  return start_work(submission_of({natives.data(), natives.size()}, wake), std::move(its),
                    streams_of(natives));
}

std::int64_t Engine::prepare(nb::handle requests) {
  const Requests natives(requests);
  std::int64_t group = 0;
  check(hvdlite_prepare(engine_, natives.data(), natives.size(), &group));
  return group;
}

nb::object Engine::submit_prepared(std::int64_t group, std::span<const std::int64_t> pointers,
                                   const bool* absent, bool wake, nb::handle streams,
                                   nb::handle memory, double weight, bool notice) {
  static_assert(sizeof(void*) == sizeof(std::int64_t));
  hvdlite_submission what{};
  what.count = pointers.size();
  what.group = group;
  what.data = reinterpret_cast<void* const*>(pointers.data());
  what.absent = absent;
  if (nb::len(streams) > 0) {
    what.stream = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(streams[0]));
  }
  what.wake = wake ? 1 : 0;
  what.weight = weight;
  what.notice = notice ? 1 : 0;
  return start_work(what, new_work({}, nb::borrow(memory), false), nb::borrow(streams));
}

void Engine::release_prepared(std::int64_t group) {
  check(hvdlite_release_prepared(engine_, group));
}

// Waits, and returns the outcome when all works have ended, or the reason why one of them will never end.
WaitResult Engine::wait_in_slices(const std::int64_t* works, std::size_t count, double limit) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = limit < kNoLimit ? Clock::now() : Clock::time_point();
  double left = limit;
  for (;;) {
    int done = 0;
    WaitResult outcome;
    {
      const nb::gil_scoped_release released;
      outcome.code = hvdlite_wait(engine_, works, count, std::min(left, kSliceSeconds), &done);
    }
    if (outcome.code != HVDLITE_OK) outcome.message = hvdlite_last_error();
    outcome.ended = done != 0;
    // Signals are handled at the end of a wait, too. If a handler raises here, the works are unchanged, and the caller may wait
    // again. If it raised only in the caller, the outcome would be lost.
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (outcome.ended || outcome.code != HVDLITE_OK) return outcome;
    if (limit < kNoLimit) {
      left = limit - std::chrono::duration<double>(Clock::now() - start).count();
    }
    if (left <= 0) {
      PyErr_SetString(PyExc_TimeoutError, "the operation has not ended in time");
      throw nb::python_error();
    }
  }
}

void Engine::order(std::int64_t work, nb::handle streams) {
  for (const std::int64_t stream : integers_of(streams)) {
    check(hvdlite_order(engine_, work, reinterpret_cast<void*>(stream)));
  }
}

bool Engine::wait_many(nb::handle works, nb::list outcomes, nb::handle streams) {
  const nb::object all = checked(PySequence_Tuple(works.ptr()));
  std::vector<Work*> natives;
  for (const nb::handle work : nb::borrow<nb::tuple>(all)) natives.push_back(&work_of(work));
  wait_for(natives, kNoLimit, streams);
  return take_contributors(natives, outcomes);
}

// Submits an operation and waits for it. `output` and `input` hold its memory. Returns the number of the operation's work,
// which the caller releases. If something goes wrong, the operation becomes a Python object: a Work, which keeps the memory
// while the operation is in flight, or for ever.
std::int64_t Engine::run(const hvdlite_submission& what, nb::handle input, nb::handle output) {
  const std::int64_t number = start(what);
  const auto as_work = [&] {
    nb::object work = new_work({}, nb::make_tuple(input, output), false);
    set_in_flight(work_of(work), nb::find(*this), number, 1, {});
    return work;
  };
  WaitResult outcome;
  try {
    outcome = wait_in_slices(&number, 1, kNoLimit);
  } catch (nb::python_error&) {
    as_work();
    throw;
  }
  if (outcome.code != HVDLITE_OK) {
    const nb::object work = as_work();
    if (outcome.ended) set_ended(work_of(work));
    raise_error(outcome.code, outcome.message);
  }
  return number;
}

// --- works that were dropped in flight -------------------------------------------------------------------------------------

bool Engine::is_here() const { return getpid() == creator_; }

// Runs no Python code. If the engine has ended, the operations have ended as well; but after a failure the transport may still
// use their memory.
void Engine::keep_dropped(nb::handle work) noexcept {
  if (!is_here()) return;
  try {
    if (!has_shut_down_) return dropped_.push_back(nb::borrow(work));
  } catch (const std::bad_alloc&) {
  }
  if (!has_shut_down_ || *hvdlite_failure_cause(engine_) != '\0') Py_XINCREF(work_of(work).memory);
}

std::size_t Engine::dropped_in_flight() const {
  std::size_t operations = 0;
  for (const nb::object& work : dropped_) operations += work_of(work).size;
  return operations;
}

// Drops works whose operations have ended. That may run any Python code, even this function.
void Engine::sweep() {
  std::vector<nb::object> all = std::exchange(dropped_, {});
  for (nb::object& each : all) {
    Work& work = work_of(each);
    int done = 0;
    // The caller has nothing to do with this work, so it gets no error.
    try {
      if (hvdlite_poll(engine_, work.number, &done) == HVDLITE_OK && done == 0) {
        dropped_.push_back(std::move(each));
        continue;
      }
      set_ended(work);
      // Streams may reuse the memory only after the operations.
      if (work.streams == nullptr) continue;
      for (const std::int64_t stream : integers_of(work.streams)) {
        // The GPU may be lost.
        if (hvdlite_order(engine_, work.number, reinterpret_cast<void*>(stream)) != HVDLITE_OK) {
          Py_XINCREF(work.memory);
        }
      }
    } catch (const std::exception&) {  // no memory: the work is kept for ever
      each.release();
    }
  }
}

}  // namespace hvdlite::python
