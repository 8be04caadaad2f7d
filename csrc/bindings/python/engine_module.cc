#include <nanobind/stl/vector.h>

#include "engine.h"

namespace hvdlite::python {

using namespace nb::literals;

namespace {

nb::object submit_prepared(Engine& engine, std::int64_t group, nb::handle pointers,
                           nb::handle absent, bool wake, nb::handle streams, nb::handle memory) {
  const Int64List addresses(pointers);
  return engine.submit_prepared(group,
                                {addresses.data(), static_cast<std::size_t>(addresses.size())},
                                absent, wake, streams, memory);
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
      .def("submit", &Engine::submit, "requests"_a, "memory"_a = nb::none(), "wake"_a = true,
           "work"_a = nb::none(),
           "Submits requests, all or nothing, and returns the work that is in flight then: the one "
           "given, or a new one, which keeps the memory.")
      .def("prepare", &Engine::prepare, "requests"_a,
           "Checks allreduces that will be submitted together many times, tuples as for submit "
           "whose pointers do not count, and returns the group's id.")
      .def("submit_prepared", &submit_prepared, "group"_a, "pointers"_a, "absent"_a = nb::tuple(),
           "wake"_a = true, "streams"_a = nb::tuple(), "memory"_a = nb::none(),
           "Submits a prepared group in place, with one pointer for each request. absent: numbers "
           "of the requests for which this rank has no value.")
      .def("release_prepared", &Engine::release_prepared, "group"_a)
      .def("wait_many", &Engine::wait_many, "works"_a, "outcomes"_a, "streams"_a = nb::tuple(),
           "Waits for all operations of these works, adds to the list for each the number of its "
           "contributors, or its failure, and returns whether all went well. For operations "
           "without output of the engine's.")
      .def_prop_ro("parked", &Engine::parked,
                   "How many operations are in flight whose work was let go.")
      .def("connect", &Engine::connect, "plain_of"_a, "work_type"_a = nb::none(),
           "Makes the functions below work: plain_of tells the Plain of a value's type, and what "
           "does not block returns objects of a type that is derived from Work.")
      .def("allreduce", &Engine::allreduce, "tensor"_a.none(), "average"_a.none(), "name"_a.none(),
           "op"_a.none(), "prescale_factor"_a.none(), "postscale_factor"_a.none(),
           "process_set"_a.none(), "in_place"_a, "blocking"_a,
           "The output of an allreduce of a plain tensor, or the work in flight; None, and nothing "
           "was submitted, where anything about the call is unusual.")
      .def("allreduce_group", &Engine::allreduce_group, "tensors"_a.none(), "name"_a.none(),
           "op"_a.none(), "prescale_factor"_a.none(), "postscale_factor"_a.none(),
           "process_set"_a.none(), "in_place"_a, "wake"_a,
           "Submits those of a list or tuple as one group: the work in flight, or None.")
      .def("broadcast", &Engine::broadcast, "tensor"_a.none(), "root_rank"_a.none(),
           "name"_a.none(), "process_set"_a.none(), "in_place"_a, "blocking"_a, "As allreduce.")
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
