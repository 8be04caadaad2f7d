// The operations in flight after one submission, as a Python object: hvdlite._engine.Work, from which hvdlite.handles.Handle is
// derived. With many small tensors, most of a handle's cost would be its creation by Python, so the type is made with CPython's
// own interface.
// Thread: with the GIL held. Owns: references, as any Python object does; the engine's results until they are taken. Blocks:
// wait, result and outputs. Throws: nb::python_error; the classes of hvdlite.errors.
//
// The memory of operations in flight must stay valid in every case, and Ctrl-C raises between any two steps of Python code. So
// the engine keeps a work that is dropped in flight until its operations have ended (Engine::keep_dropped). After a failure
// that leaves memory in use, the work is kept for ever. None of this runs Python code, so no signal handler comes in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "binding.h"

namespace hvdlite::python {

class Engine;

struct Work {
  enum class Stage : char {
    kNew,       // nothing was submitted yet
    kInFlight,  // no thread has waited to its end
    kEnded,     // the engine has the results
    kReleased,  // the results were taken or dropped
  };

  // Python's classes see some of these members, which hvdlite/_engine.pyi and Handle describe. A null object reads as None.
  PyObject_HEAD PyObject* engine;
  PyObject* memory;   // keeps the tensors
  PyObject* streams;  // the CUDA streams in whose order memory on a GPU is reused; null: none
  // A list of the results of all operations in order, after a caller has asked for it.
  PyObject* results;
  PyObject* on_gpu;
  PyObject* error;
  std::int64_t number;
  std::size_t size;  // the number of operations
  Stage stage;
  char grouped;
  char failed;  // it has ended, and one of its operations failed
};

// A new work of this type, or of Work itself if `type` is null. The work keeps this memory.
nb::object new_work(nb::handle type, nb::object memory, bool grouped);
// Throws TypeError if this is no class derived from Work.
void check_work_type(nb::handle type);
// Throws TypeError if this is no work.
Work& work_of(nb::handle object);
// From now on the operations are in flight under this number. streams: a tuple or null.
void set_in_flight(Work& work, nb::handle engine, std::int64_t number, std::size_t size,
                   nb::object streams);

// Waits until all operations of these works, all of one engine, have ended, for at most `limit` seconds. Orders the streams
// after them. If it throws, the works are unchanged, unless another thread has waited for them as well.
void wait_for(std::span<Work* const> works, double limit, nb::handle streams);
// For works that have ended: adds each operation's contributors, or its failure, to the list, and releases the works. Returns
// true if no operation failed. It cannot throw after it has added the first.
bool take_contributors(std::span<Work* const> works, nb::list outcomes);
// The operations have ended, some perhaps by failure. Keeps the memory for ever if one of them left it in use.
void set_ended(Work& work);

}  // namespace hvdlite::python
