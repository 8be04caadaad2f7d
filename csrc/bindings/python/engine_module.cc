#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>

#include "engine.h"

namespace hvdlite::python {

using namespace nb::literals;

namespace {

std::int64_t submit(Engine& engine, std::int32_t kind, std::optional<const char*> name,
                    std::int32_t dtype, nb::handle shape, std::uintptr_t input,
                    std::uintptr_t output, std::int32_t op, std::int32_t root,
                    std::int32_t process_set, double prescale, double postscale, const char* group,
                    std::int32_t group_size, std::int32_t group_index, nb::handle splits,
                    std::int32_t device, std::int32_t layout, std::int32_t flags,
                    std::int64_t arena, std::uintptr_t stream, bool wake) {
  const Int64List extents(shape);
  const Int64List counts(splits);
  hvdlite_request request{};
  request.kind = kind;
  request.dtype = dtype;
  request.op = op;
  request.root = root;
  request.process_set = process_set;
  request.device = device;
  request.layout = layout;
  request.flags = flags;
  request.name = name.value_or(nullptr);
  request.ndim = extents.size();
  request.shape = extents.data();
  request.input = reinterpret_cast<const void*>(input);
  request.output = reinterpret_cast<void*>(output);
  request.prescale = prescale;
  request.postscale = postscale;
  request.group = group;
  request.group_size = group_size;
  request.group_index = group_index;
  request.num_splits = counts.size();
  request.splits = counts.data();
  request.arena = arena;
  request.stream = reinterpret_cast<void*>(stream);
  return engine.submit(request, wake);
}

nb::list submit_many(Engine& engine, nb::handle requests, bool wake, nb::handle handles) {
  const nb::list list = handles.is_none() ? nb::list() : nb::cast<nb::list>(handles);
  engine.submit_many(requests, wake, list);
  return list;
}

std::int64_t submit_prepared(Engine& engine, std::int64_t group, nb::handle pointers,
                             nb::handle absent, bool wake, std::uintptr_t stream) {
  const Int64List addresses(pointers);
  return engine.submit_prepared(
      group, {addresses.data(), static_cast<std::size_t>(addresses.size())}, absent, wake, stream);
}

}  // namespace

void register_engine(nb::module_& module) {
  nb::class_<Fabric>(module, "Fabric", nb::is_final(),
                     "In-process ranks for tests: engines made on one Fabric talk to each other "
                     "inside this process.")
      .def(nb::init<int, nb::handle>(), "size"_a, "hosts"_a = nb::none())
      .def("kill", &Fabric::kill, "rank"_a);

  nb::class_<Engine>(module, "Engine", nb::is_final(),
                     "One rank's engine. Every method releases the GIL while it waits.")
      .def_static("create_inproc", &Engine::create_inproc, "fabric"_a, "rank"_a, "config"_a,
                  nb::keep_alive<0, 1>())
      .def_static("create_mpi", &Engine::create_mpi, "shim_path"_a, "comm_address"_a, "config"_a)
      .def("make_current", &Engine::make_current,
           "Gives this engine to the kernels of frameworks, until it shuts down.")
      .def_prop_ro("topology", &Engine::topology,
                   "(rank, size, local_rank, local_size, cross_rank, cross_size, is_homogeneous).")
      .def("submit", &submit, "kind"_a, "name"_a.none(), "dtype"_a, "shape"_a, "input_ptr"_a,
           "output_ptr"_a, "op"_a = 1, "root"_a = 0, "process_set"_a = 0, "prescale"_a = 1.0,
           "postscale"_a = 1.0, "group"_a = "", "group_size"_a = 0, "group_index"_a = 0,
           "splits"_a = nb::tuple(), "device"_a = int{HVDLITE_DEVICE_CPU}, "layout"_a = 0,
           "flags"_a = 0, "arena"_a = 0, "stream"_a = 0, "wake"_a = true,
           "Submits one request and returns its handle (> 0).")
      .def("submit_many", &submit_many, "requests"_a, "wake"_a = true, "handles"_a = nb::none(),
           "Submits requests atomically; each is a tuple of submit's arguments (without wake) in "
           "order. Adds their handles to the list, a new one if none is given, and returns it.")
      .def(
          "run", &Engine::run, "request"_a, "memory"_a = nb::none(), "keep"_a = nb::none(),
          "Submits one request, a tuple as for submit_many, and waits for it as wait does. If its "
          "memory may be in use after an exception, keep(memory, handle, code) is called first: "
          "with the handle if a signal left the operation in flight, or with 0 and the code of the "
          "failure.")
      .def("connect", &Engine::connect, "plain_of"_a, "keep"_a, "handle_type"_a = nb::none(),
           "Makes the functions below work: plain_of tells the Plain of a value's type, keep is as "
           "run's, and handles are of a type that is derived from HandleState.")
      .def("allreduce_now", &Engine::allreduce_now, "tensor"_a.none(), "average"_a.none(),
           "name"_a.none(), "op"_a.none(), "prescale_factor"_a.none(), "postscale_factor"_a.none(),
           "process_set"_a.none(), "in_place"_a,
           "The result of a blocking allreduce of a plain tensor; None, and nothing was submitted, "
           "where anything about the call is unusual.")
      .def("start_allreduce", &Engine::start_allreduce, "tensor"_a.none(), "average"_a.none(),
           "name"_a.none(), "op"_a.none(), "prescale_factor"_a.none(), "postscale_factor"_a.none(),
           "process_set"_a.none(), "in_place"_a,
           "Starts the same without waiting. Returns a handle, or None.")
      .def("start_allreduces", &Engine::start_allreduces, "tensors"_a.none(), "name"_a.none(),
           "op"_a.none(), "prescale_factor"_a.none(), "postscale_factor"_a.none(),
           "process_set"_a.none(), "in_place"_a, "wake"_a,
           "Starts those of a list or tuple as one group, with one handle; or None.")
      .def("land", &Engine::land, "handle"_a.none(), "limit"_a,
           "Waits for the operations of a handle from the two above, for so many seconds at most. "
           "Returns the output or a list of them, and the handle has the outcomes; or "
           "NotImplemented, and nothing has changed, where the handle is another one or an "
           "operation failed.")
      .def("broadcast_now", &Engine::broadcast_now, "tensor"_a.none(), "root_rank"_a.none(),
           "name"_a.none(), "process_set"_a.none(), "in_place"_a, "The same of a broadcast.")
      .def(
          "prepare", &Engine::prepare, "requests"_a,
          "Checks allreduces that will be submitted together many times, tuples as for submit_many "
          "whose pointers do not count, and returns the group's id.")
      .def("submit_prepared", &submit_prepared, "group"_a, "pointers"_a, "absent"_a = nb::tuple(),
           "wake"_a = true, "stream"_a = 0,
           "Submits a prepared group in place, with one pointer for each request, and returns one "
           "handle for it. absent: numbers of the requests for which this rank has no value.")
      .def("release_prepared", &Engine::release_prepared, "group"_a)
      .def("poll", &Engine::poll, "handle"_a)
      .def("wait", &Engine::wait, "handle"_a, "limit"_a = kNoLimit, "streams"_a = nb::tuple(),
           "Waits, driving progress, handles signals, releases the handle, and raises if the "
           "operation failed. After limit seconds TimeoutError leaves it in flight. streams: CUDA "
           "streams whose later work comes after the operation, where it is in GPU memory.")
      .def("wait_into", &Engine::wait_into, "outcomes"_a, "handle"_a, "limit"_a = kNoLimit,
           "streams"_a = nb::tuple(), "place"_a = std::numeric_limits<std::size_t>::max(),
           "Waits as wait does and adds to the list what that returns, or the failure that it "
           "raises; unless another thread has put it at that place in the list. No signal handler "
           "runs between that and the handle's release: an exception leaves the operation in "
           "flight.")
      .def("wait_many", &Engine::wait_many, "handles"_a, "outcomes"_a, "streams"_a = nb::tuple(),
           "Waits for all operations behind these handles and releases them, in the same way: adds "
           "for each operation the number of its contributors, or its failure. Returns whether all "
           "went well. For operations without output of the engine's.")
      .def("release", &Engine::release, "handle"_a)
      .def(
          "new_output", &Engine::new_output, "nbytes"_a,
          "Memory for a result, as writable bytes; large blocks are recycled when nobody uses them "
          "any more.")
      .def("new_gpu_output", &Engine::new_gpu_output, "gpu"_a, "stream"_a, "nbytes"_a,
           "Memory for a result on a GPU, usable in the order of a CUDA stream.")
      .def("gpu_of_address", &Engine::gpu_of_address, "address"_a,
           "The GPU in whose memory an address lies; -1: host memory.")
      .def("process_set_ids", &Engine::process_set_ids)
      .def("process_set_ranks", &Engine::process_set_ranks, "process_set"_a)
      .def("create_arena", &Engine::create_arena, "process_set"_a, "nbytes"_a, "kind"_a = "memfd",
           "This rank's part of an arena for a process set, all zeros.")
      .def("start_timeline", &Engine::start_timeline, "path"_a, "max_bytes"_a,
           "mark_cycles"_a = false,
           "Traces this rank's operations into a file in Chrome's format, from now on.")
      .def("stop_timeline", &Engine::stop_timeline, "Completes the file of start_timeline.")
      .def("await_question", &Engine::await_question,
           "Waits until another rank asks where this one is: True, and tell_whereabouts answers. "
           "False when the engine has shut down. For one thread.")
      .def("tell_whereabouts", &Engine::tell_whereabouts, "text"_a)
      .def("excuse", &Engine::excuse, "seconds"_a,
           "For so long the others wait for this rank without a warning; 0: no longer.")
      .def("publish_failure", &Engine::publish_failure, "cause"_a)
      .def_prop_ro("failure_cause", &Engine::failure_cause)
      .def("flight_record", &Engine::flight_record, "ended"_a = -1)
      .def("counters", &Engine::counters)
      .def("lateness", &Engine::lateness)
      .def("shutdown", &Engine::shutdown);
}

}  // namespace hvdlite::python
