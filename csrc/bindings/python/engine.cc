#include "engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <new>
#include <utility>

#include "config.h"
#include "work.h"

namespace hvdlite::python {

namespace {

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
  has_shut_down_ = true;
  // The operations have ended; after a failure the transport may still use their memory.
  std::vector<nb::object> parked = std::exchange(parked_, {});
  if (*hvdlite_failure_cause(engine_) == '\0') return;
  for (const nb::object& work : parked) Py_XINCREF(work_of(work).memory);
}

}  // namespace hvdlite::python
