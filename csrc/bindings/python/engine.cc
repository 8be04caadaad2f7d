#include "engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "config.h"

namespace hvdlite::python {

namespace {

// How long one wait runs before Python looks for signals: Ctrl-C must act within half a second.
constexpr double kSliceSeconds = 0.1;

// Runs a blocking call without the GIL; its error text belongs to this thread and is copied before anything else runs.
template <typename Call>
Outcome without_gil(Call call) {
  nb::gil_scoped_release release;
  Outcome outcome;
  outcome.code = call();
  if (outcome.code != HVDLITE_OK) outcome.message = hvdlite_last_error();
  return outcome;
}

void check_outcome(const Outcome& outcome) {
  if (outcome.code != HVDLITE_OK) raise_error(outcome.code, outcome.message);
}

template <typename Value>
nb::list as_list(const std::vector<Value>& values) {
  nb::object list = checked(PyList_New(static_cast<Py_ssize_t>(values.size())));
  for (std::size_t i = 0; i < values.size(); ++i) {
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), nb::cast(values[i]).release().ptr());
  }
  return nb::borrow<nb::list>(list);
}

// Lists whose length is not known beforehand: asks again with more room until some is left over.
template <typename Call>
std::vector<std::int32_t> list_of(Call call) {
  std::vector<std::int32_t> values(64);
  for (;;) {
    std::int32_t count = 0;
    const auto room = static_cast<std::int32_t>(values.size());
    check(call(values.data(), room, &count));
    if (count < room) {
      values.resize(static_cast<std::size_t>(count));
      return values;
    }
    values.resize(static_cast<std::size_t>(count) + values.size());
  }
}

// keep(memory, handle, code), for memory that may be in use. If that raises, as a signal's handler may at its first instruction,
// nobody frees the memory.
void keep_in_use(nb::handle keep, nb::handle memory, std::int64_t handle, int code) {
  try {
    keep(memory, handle, code);
  } catch (...) {
    memory.inc_ref();
    throw;
  }
}

}  // namespace

Fabric::Fabric(int size, nb::handle hosts) {
  std::vector<std::int32_t> numbers;
  if (!hosts.is_none()) {
    const Int64List list(hosts);
    numbers.assign(list.data(), list.data() + list.size());
  }
  if (!numbers.empty() && numbers.size() != static_cast<std::size_t>(size)) {
    throw nb::value_error("hosts must have one number for each rank");
  }
  check(hvdlite_fabric_create(size, numbers.empty() ? nullptr : numbers.data(), &fabric_));
}

Fabric::~Fabric() { hvdlite_fabric_destroy(fabric_); }

void Fabric::kill(int rank) { check(hvdlite_fabric_kill(fabric_, rank)); }

Engine::Engine(hvdlite_engine* engine) : engine_(engine), creator_(getpid()) {}

Engine::~Engine() {
  // In a forked child the engine's thread does not exist, and its memory belongs to the parent's job.
  if (getpid() != creator_) return;
  nb::gil_scoped_release release;
  hvdlite_engine_shutdown(engine_);  // here, not wherever the last reference goes
  hvdlite_engine_destroy(engine_);
}

Engine* Engine::create_inproc(Fabric& fabric, int rank, nb::handle config) {
  const Config native(config);
  hvdlite_engine* engine = nullptr;
  check_outcome(without_gil(
      [&] { return hvdlite_engine_create_inproc(fabric.get(), rank, native.get(), &engine); }));
  return new Engine(engine);
}

Engine* Engine::create_mpi(const char* shim_path, std::uintptr_t comm_address, nb::handle config) {
  const Config native(config);
  const auto* comm = reinterpret_cast<const void*>(comm_address);
  hvdlite_engine* engine = nullptr;
  check_outcome(without_gil(
      [&] { return hvdlite_engine_create_mpi(shim_path, comm, native.get(), &engine); }));
  return new Engine(engine);
}

void Engine::make_current() { hvdlite_set_current_engine(engine_); }

nb::tuple Engine::topology() const {
  hvdlite_topology topology{};
  check(hvdlite_engine_topology(engine_, &topology));
  return nb::make_tuple(topology.rank, topology.size, topology.local_rank, topology.local_size,
                        topology.cross_rank, topology.cross_size, topology.is_homogeneous != 0);
}

// The GIL stays held: submitting takes a short lock that no thread holds while it wants the GIL, and giving the GIL away
// could cost this thread a whole switch interval.
std::int64_t Engine::submit(const hvdlite_request& request, bool wake) {
  std::int64_t handle = 0;
  check(hvdlite_submit(engine_, &request, 1, wake ? 1 : 0, &handle));
  return handle;
}

void Engine::submit_many(nb::handle requests, bool wake, nb::list handles) {
  const Requests natives = Requests::of_sequence(requests);
  std::vector<std::int64_t> numbers(natives.size());
  check(hvdlite_submit(engine_, natives.data(), natives.size(), wake ? 1 : 0, numbers.data()));
  for (const std::int64_t number : numbers) handles.append(number);
}

std::int64_t Engine::prepare(nb::handle requests) {
  const Requests natives = Requests::of_sequence(requests);
  std::int64_t group = 0;
  check(hvdlite_prepare(engine_, natives.data(), natives.size(), &group));
  return group;
}

std::int64_t Engine::submit_prepared(std::int64_t group, std::span<const std::int64_t> pointers,
                                     nb::handle absent, bool wake, std::uintptr_t stream) {
  const Int64List lacking(absent);
  std::unique_ptr<bool[]> is_absent;
  if (lacking.size() > 0) is_absent = std::make_unique<bool[]>(pointers.size());
  for (std::int32_t i = 0; i < lacking.size(); ++i) {
    const std::int64_t index = lacking.data()[i];
    if (index < 0 || index >= static_cast<std::int64_t>(pointers.size())) {
      throw nb::index_error("absent: the group has no request of that number");
    }
    is_absent[static_cast<std::size_t>(index)] = true;
  }
  static_assert(sizeof(void*) == sizeof(std::int64_t));
  std::int64_t handle = 0;
  check(hvdlite_submit_prepared(engine_, group, reinterpret_cast<void* const*>(pointers.data()),
                                is_absent.get(), pointers.size(), reinterpret_cast<void*>(stream),
                                wake ? 1 : 0, &handle));
  return handle;
}

void Engine::release_prepared(std::int64_t group) {
  check(hvdlite_release_prepared(engine_, group));
}

bool Engine::poll(std::int64_t handle) {
  int done = 0;
  check(hvdlite_poll(engine_, handle, &done));
  return done != 0;
}

// Waits in slices until the operations behind all handles have ended; between slices Python looks for signals, and raises
// what their handlers raise, and TimeoutError once the limit (in seconds) is over. The outcome is the last handle's if all
// ended, otherwise why one of them never will.
Outcome Engine::wait_in_slices(const std::int64_t* handles, std::size_t count, double limit) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = limit < kNoLimit ? Clock::now() : Clock::time_point();
  double left = limit;
  std::size_t next = 0;
  for (;;) {
    int done = 1;
    Outcome outcome = without_gil([&] {
      int code = HVDLITE_OK;
      for (; next < count && done != 0; next += done != 0 ? 1 : 0) {
        code = hvdlite_wait(engine_, handles[next], std::min(left, kSliceSeconds), &done);
        if (done == 0 && code != HVDLITE_OK) break;
      }
      return code;
    });
    outcome.ended = next == count;
    // Also at the end: a handler that Python runs as soon as we return would raise between the wait and what follows it,
    // and the outcome would be lost.
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

// What these streams do from now on comes after the operations behind the handle, where they are on a GPU.
void Engine::order(std::int64_t handle, nb::handle streams) {
  const Int64List list(streams);
  for (std::int32_t i = 0; i < list.size(); ++i) {
    check(hvdlite_order(engine_, handle, reinterpret_cast<void*>(list.data()[i])));
  }
}

// The outcome of one operation, once it has ended. If its memory may be in use after an exception, hand_over(handle, code) is
// called first: see Engine.run.
template <typename HandOver>
Outcome Engine::end(std::int64_t handle, double limit, HandOver hand_over) {
  Outcome outcome;
  try {
    outcome = wait_in_slices(&handle, 1, limit);
  } catch (nb::python_error&) {
    hand_over(handle, HVDLITE_OK);
    throw;
  }
  if (outcome.code != HVDLITE_OK) hand_over(std::int64_t{0}, outcome.code);
  if (!outcome.ended) raise_error(outcome.code, outcome.message);
  return outcome;
}

// What collect() makes of an operation that has ended. Releases the handle however this ends; what raises has copied its message.
template <typename Collect>
auto Engine::finish(std::int64_t handle, const Outcome& outcome, Collect collect) {
  struct Releaser {
    Engine* engine;
    std::int64_t handle;
    ~Releaser() { hvdlite_release(engine->engine_, handle); }
  } releaser{this, handle};
  check_outcome(outcome);
  return collect();
}

Result Engine::wait(std::int64_t handle, double limit, nb::handle streams) {
  return result_of(handle, end(handle, limit, [](std::int64_t, int) {}), streams);
}

Result Engine::result_of(std::int64_t handle, const Outcome& outcome, nb::handle streams) {
  return finish(handle, outcome, [&] {
    order(handle, streams);
    return collect_result(engine_, handle);
  });
}

// What may raise comes first; then nothing does until the outcome is in its list and the operation released.
void Engine::wait_into(nb::list outcomes, std::int64_t handle, double limit, nb::handle streams,
                       std::size_t place) {
  if (nb::len(outcomes) > place) return;
  const Outcome outcome = wait_in_slices(&handle, 1, limit);
  if (nb::len(outcomes) > place) return;
  if (!outcome.ended) raise_error(outcome.code, outcome.message);
  nb::object what;
  if (outcome.code == HVDLITE_OK) {
    order(handle, streams);
    what = nb::cast(collect_result(engine_, handle));
  } else {
    poll(handle);  // an operation that failed is known; if none is, that is raised
    what = make_error(outcome.code, outcome.message);
  }
  outcomes.append(what);
  hvdlite_release(engine_, handle);
}

bool Engine::wait_many(nb::handle handles, nb::list outcomes, nb::handle streams) {
  const Int64List numbers(handles);
  const std::span all(numbers.data(), static_cast<std::size_t>(numbers.size()));
  const Outcome outcome = wait_in_slices(all.data(), all.size());
  if (!outcome.ended) raise_error(outcome.code, outcome.message);
  bool all_well = true;
  nb::list what;
  std::vector<std::int32_t> contributors(1);
  for (const std::int64_t handle : all) {
    order(handle, streams);
    std::size_t members = 0;
    const auto ask = [&] {
      check(hvdlite_outcomes(engine_, handle, contributors.data(), contributors.size(), &members));
    };
    ask();
    if (members > contributors.size()) {
      contributors.resize(members);
      ask();
    }
    for (std::size_t member = 0; member < members; ++member) {
      if (contributors[member] >= 0) {
        what.append(contributors[member]);
        continue;
      }
      const int code = hvdlite_outcome_error(engine_, handle, member);
      what.append(make_error(code, hvdlite_last_error()));
      all_well = false;
    }
  }
  outcomes.extend(what);
  for (const std::int64_t handle : all) hvdlite_release(engine_, handle);
  return all_well;
}

Result Engine::run(nb::handle request, nb::handle memory, nb::handle keep) {
  const Requests native = Requests::of_tuple(request);
  // The result is used in the stream in whose order the memory was given.
  const hvdlite_request& request_of = *native.data();
  nb::object streams = nb::tuple();
  if (request_of.device >= 0) {
    streams = nb::make_tuple(reinterpret_cast<std::uintptr_t>(request_of.stream));
  }
  const std::int64_t handle = submit(request_of, false);
  const Outcome outcome = end(handle, kNoLimit, [&](std::int64_t in_flight, int code) {
    if (!keep.is_none()) keep_in_use(keep, memory, in_flight, code);
  });
  return finish(handle, outcome, [&] {
    try {
      order(handle, streams);
    } catch (...) {
      // The GPU may be at work, and when it has come to the end nobody can tell: the memory is kept for good.
      if (!keep.is_none()) keep_in_use(keep, memory, 0, HVDLITE_E_SYSTEM);
      throw;
    }
    return collect_result(engine_, handle);
  });
}

void Engine::run_through(const hvdlite_request& request, nb::handle input, nb::handle output) {
  const std::int64_t handle = submit(request, false);
  const Outcome outcome = end(handle, kNoLimit, [&](std::int64_t in_flight, int code) {
    keep_in_use(keep_, nb::make_tuple(input, output), in_flight, code);
  });
  finish(handle, outcome, [] {});
}

void Engine::release(std::int64_t handle) { check(hvdlite_release(engine_, handle)); }

nb::object Engine::new_output(std::size_t bytes) {
  hvdlite_block* block = nullptr;
  const auto create = [&] {
    const nb::gil_scoped_release released;  // the system may have to make pages
    return hvdlite_block_create(engine_, bytes, &block);
  };
  check(create());
  OwnedBytes owned;
  owned.block.reset(block);
  owned.size = bytes;
  return as_memoryview(std::move(owned));
}

GpuMemory Engine::new_gpu_output(std::int32_t gpu, std::uintptr_t stream, std::size_t bytes) {
  hvdlite_block* block = nullptr;
  const auto create = [&] {
    const nb::gil_scoped_release released;  // the driver may wait for the GPU
    return hvdlite_gpu_block_create(engine_, gpu, bytes, reinterpret_cast<void*>(stream), &block);
  };
  check(create());
  GpuMemory memory;
  memory.block.reset(block);
  memory.size = bytes;
  return memory;
}

std::int32_t Engine::gpu_of_address(std::uintptr_t address) {
  std::int32_t gpu = HVDLITE_DEVICE_CPU;
  check(hvdlite_gpu_of_address(engine_, reinterpret_cast<const void*>(address), &gpu));
  return gpu;
}

std::vector<std::int32_t> Engine::process_set_ids() {
  return list_of([&](std::int32_t* ids, std::int32_t room, std::int32_t* count) {
    return hvdlite_process_set_ids(engine_, ids, room, count);
  });
}

std::vector<std::int32_t> Engine::process_set_ranks(std::int32_t id) {
  return list_of([&](std::int32_t* ranks, std::int32_t room, std::int32_t* count) {
    return hvdlite_process_set_ranks(engine_, id, ranks, room, count);
  });
}

Arena* Engine::create_arena(std::int32_t process_set, std::int64_t nbytes, const char* kind) {
  hvdlite_arena* arena = nullptr;
  check_outcome(without_gil(
      [&] { return hvdlite_arena_create(engine_, process_set, kind, nbytes, &arena); }));
  return new Arena(arena);
}

void Engine::start_timeline(const char* path, std::int64_t max_bytes, bool mark_cycles) {
  check_outcome(without_gil(
      [&] { return hvdlite_timeline_start(engine_, path, max_bytes, mark_cycles ? 1 : 0); }));
}

void Engine::stop_timeline() {
  check_outcome(without_gil([&] { return hvdlite_timeline_stop(engine_); }));
}

bool Engine::await_question() {
  int asked = 0;
  check_outcome(without_gil([&] { return hvdlite_watchdog_wait(engine_, &asked); }));
  return asked != 0;
}

void Engine::tell_whereabouts(const char* text) { check(hvdlite_watchdog_tell(engine_, text)); }

void Engine::excuse(double seconds) { check(hvdlite_stall_excuse(engine_, seconds)); }

void Engine::publish_failure(const char* cause) {
  check_outcome(without_gil([&] { return hvdlite_publish_failure(engine_, cause); }));
}

nb::str Engine::failure_cause() { return text(hvdlite_failure_cause(engine_)); }

nb::str Engine::flight_record(std::int64_t ended) {
  const std::unique_ptr<char, decltype(&hvdlite_free)> record(hvdlite_flight_record(engine_, ended),
                                                              &hvdlite_free);
  return text(record.get());
}

nb::dict Engine::counters() {
  hvdlite_counters counters{};
  check(hvdlite_get_counters(engine_, &counters));
  nb::dict result;
  result["submitted"] = counters.submitted;
  result["completed"] = counters.completed;
  result["failed"] = counters.failed;
  result["control_messages_sent"] = counters.control_messages_sent;
  result["control_bytes_sent"] = counters.control_bytes_sent;
  result["fused_ops"] = counters.fused_ops;
  result["cache_hits"] = counters.cache_hits;
  result["cache_misses"] = counters.cache_misses;
  result["agreed_in_memory"] = counters.agreed_in_memory;
  result["data_bytes_sent"] = counters.data_bytes_sent;
  result["arena_ops"] = counters.arena_ops;
  result["riding_ops"] = counters.riding_ops;
  result["open_results"] = counters.open_results;
  result["nccl_ops"] = counters.nccl_ops;
  result["staged_ops"] = counters.staged_ops;
  result["passes"] = counters.passes;
  result["sleeps"] = counters.sleeps;
  result["sleep_limits_us"] = counters.sleep_limits_us;
  result["rung_sleeps"] = counters.rung_sleeps;
  result["unrung_finds"] = counters.unrung_finds;
  result["time_ns"] = counters.time_ns;
  result["bytes"] = counters.bytes;
  result["bus_bytes"] = counters.bus_bytes;
  result["negotiating_ns"] = counters.negotiating_ns;
  result["waiting_ns"] = counters.waiting_ns;
  result["moving_ns"] = counters.moving_ns;
  result["exposed_ns"] = counters.exposed_ns;
  result["exposed_moving_ns"] = counters.exposed_moving_ns;
  return result;
}

nb::tuple Engine::lateness() {
  hvdlite_topology topology{};
  check(hvdlite_engine_topology(engine_, &topology));
  const auto size = static_cast<std::size_t>(topology.size);
  std::vector<std::int64_t> operations(size);
  std::vector<std::int64_t> nanoseconds(size);
  check(hvdlite_get_lateness(engine_, operations.data(), nanoseconds.data(), topology.size));
  return nb::make_tuple(as_list(operations), as_list(nanoseconds));
}

void Engine::shutdown() {
  check_outcome(without_gil([&] { return hvdlite_engine_shutdown(engine_); }));
}

}  // namespace hvdlite::python
