// What is in flight after one submission, as a Python object: hvdlite._engine.Work, which hvdlite.handles.Handle is derived from.
// With many small tensors most of what a handle cost was Python making it, so the type is CPython's own kind.
// Thread: with the GIL held. Owns: references, as any Python object does; what the engine keeps of the operations until somebody
// has taken their results. Blocks: wait, result and land. Throws: nb::python_error; the classes of hvdlite.errors.
//
// The memory of operations in flight must stay, whatever happens to the program: Ctrl-C raises between any two things that Python
// does. So a work that is let go with operations in flight is kept by its engine until they have ended (Engine::keep_dropped), and after a
// failure that leaves memory in use it is kept for good. None of this runs Python code, so no signal comes in between.
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
    kInFlight,  // nobody has waited to the end
    kEnded,     // the engine has the results
    kReleased,  // the results were taken, if anybody wanted them
  };

  // Python's classes see these members, and Handle says what those of its own mean. A null object reads as None.
  PyObject_HEAD PyObject* engine;
  PyObject* memory;   // keeps the tensors
  PyObject* streams;  // the CUDA streams in whose order memory on a GPU is used again; null: none
  PyObject* results;  // of all operations in order, a list, once somebody has asked for it
  PyObject* on_gpu;
  PyObject* error;
  std::int64_t number;
  std::size_t size;  // operations
  Stage stage;
  char grouped;
  char failed;  // has ended, and one of its operations badly
};

// A new one, of this type or of Work itself (a null handle), which keeps this memory.
nb::object new_work(nb::handle type, nb::object memory, bool grouped);
// Throws TypeError if this is no class derived from Work.
void check_work_type(nb::handle type);
// Throws TypeError if this is no work.
Work& work_of(nb::handle object);
// Its operations are in flight under this number. streams: a tuple or null.
void set_in_flight(Work& work, nb::handle engine, std::int64_t number, std::size_t size,
                   nb::object streams);

// Waits until all operations of all these works, of one engine, have ended, for so many seconds at most, and puts the streams after
// them. If this throws, a work is as it was, unless another thread has waited for it too.
void wait_for(std::span<Work* const> works, double limit, nb::handle streams);
// Of works that have ended: adds the contributors of each operation to the list, or its failure, and releases the works. Did all go
// well? Nothing can be raised once the first was added.
bool take_contributors(std::span<Work* const> works, nb::list outcomes);
// Its operations have ended, perhaps badly. Keeps the memory for good if one has left it in use.
void set_ended(Work& work);

}  // namespace hvdlite::python
