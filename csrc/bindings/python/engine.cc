#include "engine.h"

#include <unistd.h>

#include "config.h"

namespace hvdlite::python {

namespace {

// How long one wait runs before Python looks for signals: Ctrl-C must act within half a second.
constexpr double kSliceSeconds = 0.1;

struct Outcome {
  int code = HVDLITE_OK;
  std::string message;
};

// Runs a blocking call without the GIL; its error text belongs to this thread and is copied before anything else runs.
template <typename Call>
Outcome without_gil(Call call) {
  nb::gil_scoped_release release;
  Outcome outcome{call(), {}};
  if (outcome.code != HVDLITE_OK) outcome.message = hvdlite_last_error();
  return outcome;
}

void check(const Outcome& outcome) {
  if (outcome.code != HVDLITE_OK) raise_error(outcome.code, outcome.message);
}

// Lists whose length is not known beforehand: asks again with more room until some is left over.
template <typename Call>
std::vector<std::int32_t> list_of(Call call) {
  std::vector<std::int32_t> values(64);
  for (;;) {
    std::int32_t count = 0;
    const auto room = static_cast<std::int32_t>(values.size());
    python::check(call(values.data(), room, &count));
    if (count < room) {
      values.resize(static_cast<std::size_t>(count));
      return values;
    }
    values.resize(static_cast<std::size_t>(count) + values.size());
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
  python::check(hvdlite_fabric_create(size, numbers.empty() ? nullptr : numbers.data(), &fabric_));
}

Fabric::~Fabric() { hvdlite_fabric_destroy(fabric_); }

void Fabric::kill(int rank) { python::check(hvdlite_fabric_kill(fabric_, rank)); }

Engine::Engine(hvdlite_engine* engine) : engine_(engine), creator_(getpid()) {}

Engine::~Engine() {
  // In a forked child the engine's thread does not exist, and its memory belongs to the parent's job.
  if (getpid() != creator_) return;
  nb::gil_scoped_release release;
  hvdlite_engine_destroy(engine_);
}

Engine* Engine::create_inproc(Fabric& fabric, int rank, nb::handle config) {
  const Config native(config);
  hvdlite_engine* engine = nullptr;
  check(without_gil(
      [&] { return hvdlite_engine_create_inproc(fabric.get(), rank, native.get(), &engine); }));
  return new Engine(engine);
}

Engine* Engine::create_mpi(const char* shim_path, std::uintptr_t comm_address, nb::handle config) {
  const Config native(config);
  const auto* comm = reinterpret_cast<const void*>(comm_address);
  hvdlite_engine* engine = nullptr;
  check(without_gil(
      [&] { return hvdlite_engine_create_mpi(shim_path, comm, native.get(), &engine); }));
  return new Engine(engine);
}

nb::tuple Engine::topology() const {
  hvdlite_topology topology{};
  python::check(hvdlite_engine_topology(engine_, &topology));
  return nb::make_tuple(topology.rank, topology.size, topology.local_rank, topology.local_size,
                        topology.cross_rank, topology.cross_size, topology.is_homogeneous != 0);
}

// The GIL stays held: submitting takes a short lock that no thread holds while it wants the GIL, and giving the GIL away
// could cost this thread a whole switch interval.
std::int64_t Engine::submit(const Request& request, bool wake) {
  const hvdlite_request native = request.native();
  std::int64_t handle = 0;
  python::check(hvdlite_submit(engine_, &native, 1, wake ? 1 : 0, &handle));
  return handle;
}

nb::list Engine::submit_many(nb::handle requests, bool wake) {
  std::vector<Request> parsed;
  const nb::tuple items = nb::steal<nb::tuple>(PySequence_Tuple(requests.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  parsed.reserve(items.size());
  for (nb::handle item : items) parsed.push_back(request_from_tuple(item));
  std::vector<hvdlite_request> natives;
  natives.reserve(parsed.size());
  for (const Request& request : parsed) natives.push_back(request.native());
  std::vector<std::int64_t> handles(parsed.size());
  python::check(
      hvdlite_submit(engine_, natives.data(), natives.size(), wake ? 1 : 0, handles.data()));
  nb::list result;
  for (const std::int64_t handle : handles) result.append(handle);
  return result;
}

bool Engine::poll(std::int64_t handle) {
  int done = 0;
  python::check(hvdlite_poll(engine_, handle, &done));
  return done != 0;
}

Result Engine::wait(std::int64_t handle) {
  int done = 0;
  Outcome outcome;
  for (;;) {
    outcome = without_gil([&] { return hvdlite_wait(engine_, handle, kSliceSeconds, &done); });
    if (done != 0) break;
    check(outcome);
    if (PyErr_CheckSignals() != 0) throw nb::python_error();  // the handle stays valid
  }
  // Releases the handle however this ends; what raises below has copied its message.
  struct Releaser {
    Engine* engine;
    std::int64_t handle;
    ~Releaser() { hvdlite_release(engine->engine_, handle); }
  } releaser{this, handle};
  check(outcome);
  return collect_result(engine_, handle);
}

void Engine::release(std::int64_t handle) { python::check(hvdlite_release(engine_, handle)); }

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
  check(without_gil(
      [&] { return hvdlite_arena_create(engine_, process_set, kind, nbytes, &arena); }));
  return new Arena(arena);
}

void Engine::publish_failure(const char* cause) {
  check(without_gil([&] { return hvdlite_publish_failure(engine_, cause); }));
}

nb::str Engine::failure_cause() { return text(hvdlite_failure_cause(engine_)); }

nb::str Engine::flight_record() {
  OwnedBytes record{decltype(OwnedBytes::data)(hvdlite_flight_record(engine_)), 0};
  return text(static_cast<const char*>(record.data.get()));
}

nb::dict Engine::counters() {
  hvdlite_counters counters{};
  python::check(hvdlite_get_counters(engine_, &counters));
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
  return result;
}

void Engine::shutdown() {
  check(without_gil([&] { return hvdlite_engine_shutdown(engine_); }));
}

}  // namespace hvdlite::python
