// Converts Python's requests to the C ABI's.
// Thread: with the GIL held. Owns: the integers of shapes and splits; it borrows strings from the Python objects. Blocks: no.
// Throws: TypeError, which names the argument; InvalidArgumentError for a name; for the integers of shapes and splits, what
// Python raises.
#pragma once

#include <vector>

#include "binding.h"

namespace hvdlite::python {

// A str as the name of an operation; it belongs to the str. Null, without a Python error, if it has a null character or a
// surrogate, and so is no text for the engine.
const char* name_in(PyObject* text);

// The integers of any Python sequence.
std::vector<std::int64_t> integers_of(nb::handle sequence);

// Requests made from a sequence of tuples with the items of hvdlite.requests.Request. Trailing items may be missing; their
// defaults are the same. A pointer may also be an object with the buffer protocol. The tuples must outlive this object.
class Requests {
 public:
  explicit Requests(nb::handle sequence);
  const hvdlite_request* data() const { return natives_.data(); }
  std::size_t size() const { return natives_.size(); }

 private:
  void add(nb::handle tuple);

  std::vector<hvdlite_request> natives_;
  std::vector<std::int64_t> integers_;  // of the first shape, the first splits, the second shape...
};

}  // namespace hvdlite::python
