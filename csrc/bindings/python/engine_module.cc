// The methods of Python's Engine that do not concern operations, and the definition of the type.

#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>

#include "arena.h"
#include "config.h"
#include "engine.h"

namespace hvdlite::python {

using namespace nb::literals;

namespace {

// Ranks in one process, for tests.
class Fabric {
 public:
  // hosts: the number of each rank's host, or None for one host.
  Fabric(int size, nb::handle hosts) {
    std::vector<std::int32_t> numbers;
    if (!hosts.is_none()) {
      const std::vector<std::int64_t> list = integers_of(hosts);
      numbers.assign(list.begin(), list.end());
    }
    if (!numbers.empty() && numbers.size() != static_cast<std::size_t>(size)) {
      throw nb::value_error("hosts must have one number for each rank");
    }
    check(hvdlite_fabric_create(size, numbers.empty() ? nullptr : numbers.data(), &fabric_));
  }
  ~Fabric() { hvdlite_fabric_destroy(fabric_); }
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;
  void kill(int rank) { check(hvdlite_fabric_kill(fabric_, rank)); }
  hvdlite_fabric* get() const { return fabric_; }

 private:
  hvdlite_fabric* fabric_ = nullptr;
};

Engine* create_inproc(Fabric& fabric, int rank, nb::handle config) {
  const Config native(config);
  hvdlite_engine* engine = nullptr;
  check_without_gil(
      [&] { return hvdlite_engine_create_inproc(fabric.get(), rank, native.get(), &engine); });
  return new Engine(engine);
}

Engine* create_mpi(const Utf8& shim_path, std::uintptr_t comm_address, nb::handle config,
                   bool takes_comm) {
  const Config native(config);
  const auto* comm = reinterpret_cast<const void*>(comm_address);
  hvdlite_engine* engine = nullptr;
  check_without_gil([&] {
    return hvdlite_engine_create_mpi(shim_path.c_str(), comm, takes_comm ? 1 : 0, native.get(),
                                     &engine);
  });
  return new Engine(engine);
}

template <typename Value>
nb::list as_list(const std::vector<Value>& values) {
  nb::object list = checked(PyList_New(static_cast<Py_ssize_t>(values.size())));
  for (std::size_t i = 0; i < values.size(); ++i) {
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), nb::cast(values[i]).release().ptr());
  }
  return nb::borrow<nb::list>(list);
}

// Reads a list of unknown length: asks again, with room for as many values as the list has had, until the list fits.
template <typename Call>
std::vector<std::int32_t> list_of(Call call) {
  std::vector<std::int32_t> values;
  for (std::int32_t count = 0;; values.resize(static_cast<std::size_t>(count))) {
    check(call(values.data(), count, &count));
    if (static_cast<std::size_t>(count) == values.size()) return values;
  }
}

// Calls a function of the C ABI whose only argument is the engine, without the GIL.
template <int (*kFunction)(hvdlite_engine*)>
void run_without_gil(Engine& engine) {
  check_without_gil([&] { return kFunction(engine.get()); });
}

nb::object submit_prepared(Engine& engine, std::int64_t group, nb::handle pointers,
                           nb::handle absent, bool wake, nb::handle streams, nb::handle memory,
                           double weight, bool notice) {
  const std::vector<std::int64_t> addresses = integers_of(pointers);
  const auto is_absent = std::make_unique<bool[]>(addresses.size());
  for (const std::int64_t index : integers_of(absent)) {
    if (index < 0 || static_cast<std::size_t>(index) >= addresses.size()) {
      throw nb::index_error("absent: the group has no request of that number");
    }
    is_absent[static_cast<std::size_t>(index)] = true;
  }
  return engine.submit_prepared(group, addresses, is_absent.get(), wake, streams, memory, weight,
                                notice);
}

void make_current(Engine& engine) { hvdlite_set_current_engine(engine.get()); }

hvdlite_topology native_topology(const Engine& engine) {
  hvdlite_topology topology{};
  check(hvdlite_engine_topology(engine.get(), &topology));
  return topology;
}

nb::tuple topology(const Engine& engine) {
  const hvdlite_topology its = native_topology(engine);
  return nb::make_tuple(its.rank, its.size, its.local_rank, its.local_size, its.cross_rank,
                        its.cross_size, its.is_homogeneous != 0);
}

nb::object new_output(Engine& engine, std::size_t bytes) {
  hvdlite_block* block = nullptr;
  // The system may have to make pages.
  check_without_gil([&] { return hvdlite_block_create(engine.get(), bytes, &block); });
  return as_memoryview({OwnedBlock(block), bytes});
}

GpuMemory new_gpu_output(Engine& engine, std::int32_t gpu, std::uintptr_t stream,
                         std::size_t bytes) {
  hvdlite_block* block = nullptr;
  // The driver may wait for the GPU.
  check_without_gil([&] {
    return hvdlite_gpu_block_create(engine.get(), gpu, bytes, reinterpret_cast<void*>(stream),
                                    &block);
  });
  return {OwnedBlock(block), bytes};
}

std::int32_t gpu_of_address(Engine& engine, std::uintptr_t address) {
  std::int32_t gpu = HVDLITE_DEVICE_CPU;
  check(hvdlite_gpu_of_address(engine.get(), reinterpret_cast<const void*>(address), &gpu));
  return gpu;
}

std::vector<std::int32_t> process_set_ids(Engine& engine) {
  return list_of([&](std::int32_t* ids, std::int32_t room, std::int32_t* count) {
    return hvdlite_process_set_ids(engine.get(), ids, room, count);
  });
}

std::vector<std::int32_t> process_set_ranks(Engine& engine, std::int32_t id) {
  return list_of([&](std::int32_t* ranks, std::int32_t room, std::int32_t* count) {
    return hvdlite_process_set_ranks(engine.get(), id, ranks, room, count);
  });
}

Arena* create_arena(Engine& engine, std::int32_t process_set, std::int64_t nbytes,
                    const char* kind) {
  hvdlite_arena* arena = nullptr;
  check_without_gil(
      [&] { return hvdlite_arena_create(engine.get(), process_set, kind, nbytes, &arena); });
  return new Arena(arena);
}

void start_timeline(Engine& engine, const Utf8& path, std::int64_t max_bytes, bool mark_cycles) {
  check_without_gil([&] {
    return hvdlite_timeline_start(engine.get(), path.c_str(), max_bytes, mark_cycles ? 1 : 0);
  });
}

bool await_question(Engine& engine) {
  int asked = 0;
  check_without_gil([&] { return hvdlite_watchdog_wait(engine.get(), &asked); });
  return asked != 0;
}

void answer_question(Engine& engine, const Utf8& text) {
  check(hvdlite_watchdog_tell(engine.get(), text.c_str()));
}

void exempt_from_stalls(Engine& engine, double seconds) {
  check(hvdlite_stall_exempt(engine.get(), seconds));
}

void publish_failure(Engine& engine, const Utf8& cause) {
  check_without_gil([&] { return hvdlite_publish_failure(engine.get(), cause.c_str()); });
}

nb::str failure_cause(Engine& engine) { return text(hvdlite_failure_cause(engine.get())); }

nb::str flight_record(Engine& engine, std::int64_t ended) {
  const std::unique_ptr<char, decltype(&hvdlite_free)> record(
      hvdlite_flight_record(engine.get(), ended), &hvdlite_free);
  return text(record.get());
}

nb::dict counters(Engine& engine) {
  hvdlite_counters counters{};
  check(hvdlite_get_counters(engine.get(), &counters));
  nb::dict result;
#define HVDLITE_COUNTER(source, name) result[#name] = counters.name;
#include "hvdlite/counters.inc"
#undef HVDLITE_COUNTER
  return result;
}

nb::tuple lateness(Engine& engine) {
  const std::int32_t count = native_topology(engine).size;
  std::vector<std::int64_t> operations(static_cast<std::size_t>(count));
  std::vector<std::int64_t> nanoseconds(operations.size());
  check(hvdlite_get_lateness(engine.get(), operations.data(), nanoseconds.data(), count));
  return nb::make_tuple(as_list(operations), as_list(nanoseconds));
}

}  // namespace

void register_engine(nb::module_& module) {
  nb::class_<Fabric>(module, "Fabric", nb::is_final())
      .def(nb::init<int, nb::handle>(), "size"_a, "hosts"_a = nb::none())
      .def("kill", &Fabric::kill, "rank"_a);

  nb::class_<Engine>(module, "Engine", nb::is_final())
      .def_static("create_inproc", &create_inproc, "fabric"_a, "rank"_a, "config"_a,
                  nb::keep_alive<0, 1>())
      .def_static("create_mpi", &create_mpi, "shim_path"_a, "comm_address"_a, "config"_a,
                  "takes_comm"_a = false)
      .def("make_current", &make_current)
      .def_prop_ro("topology", &topology)
      .def("submit", &Engine::submit, "requests"_a, "memory"_a = nb::none(), "wake"_a = true,
           "work"_a = nb::none())
      .def("prepare", &Engine::prepare, "requests"_a)
      .def("submit_prepared", &submit_prepared, "group"_a, "pointers"_a, "absent"_a = nb::tuple(),
           "wake"_a = true, "streams"_a = nb::tuple(), "memory"_a = nb::none(), "weight"_a = 0.0,
           "notice"_a = false)
      .def("release_prepared", &Engine::release_prepared, "group"_a)
      .def("wait_many", &Engine::wait_many, "works"_a, "outcomes"_a, "streams"_a = nb::tuple())
      .def_prop_ro("dropped_in_flight", &Engine::dropped_in_flight)
      .def("connect", &Engine::connect, "plain_of"_a, "work_type"_a = nb::none())
      .def("allreduce", &Engine::allreduce, "tensor"_a.none(), "average"_a.none(), "name"_a.none(),
           "op"_a.none(), "prescale_factor"_a.none(), "postscale_factor"_a.none(),
           "process_set"_a.none(), "in_place"_a, "blocking"_a)
      .def("allreduce_group", &Engine::allreduce_group, "tensors"_a.none(), "name"_a.none(),
           "op"_a.none(), "prescale_factor"_a.none(), "postscale_factor"_a.none(),
           "process_set"_a.none(), "in_place"_a, "wake"_a)
      .def("broadcast", &Engine::broadcast, "tensor"_a.none(), "root_rank"_a.none(),
           "name"_a.none(), "process_set"_a.none(), "in_place"_a, "blocking"_a)
      .def("new_shape", &Engine::new_shape, "kind"_a, "tensor"_a.none(), "name"_a.none(),
           "op"_a.none(), "prescale_factor"_a.none(), "postscale_factor"_a.none(),
           "process_set"_a.none())
      .def("message", &Engine::message, "kind"_a, "tensor"_a.none(), "peer"_a.none(),
           "tag"_a.none(), "name"_a.none(), "process_set"_a.none(), "blocking"_a)
      .def("messages", &Engine::messages, "kinds"_a, "operations"_a, "process_set"_a.none())
      .def("new_output", &new_output, "nbytes"_a)
      .def("new_gpu_output", &new_gpu_output, "gpu"_a, "stream"_a, "nbytes"_a)
      .def("gpu_of_address", &gpu_of_address, "address"_a)
      .def("process_set_ids", &process_set_ids)
      .def("process_set_ranks", &process_set_ranks, "process_set"_a)
      .def("create_arena", &create_arena, "process_set"_a, "nbytes"_a, "kind"_a = "memfd")
      .def("start_timeline", &start_timeline, "path"_a, "max_bytes"_a, "mark_cycles"_a = false)
      .def("stop_timeline", &run_without_gil<hvdlite_timeline_stop>)
      .def("await_question", &await_question)
      .def("answer_question", &answer_question, "text"_a)
      .def("exempt_from_stalls", &exempt_from_stalls, "seconds"_a)
      .def("publish_failure", &publish_failure, "cause"_a)
      .def_prop_ro("failure_cause", &failure_cause)
      .def("flight_record", &flight_record, "ended"_a = -1)
      .def("counters", &counters)
      .def("lateness", &lateness)
      .def("pause", &run_without_gil<hvdlite_engine_pause>)
      .def("resume", &run_without_gil<hvdlite_engine_resume>)
      .def("shutdown", &Engine::shutdown);
}

}  // namespace hvdlite::python
