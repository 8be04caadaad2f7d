// Converts Python's requests to the C ABI's.
// Thread: with the GIL held. Owns: the integers of shapes and splits; it borrows strings from the Python objects. Blocks: no.
// Throws: TypeError, which names the argument; InvalidArgumentError for a name; for the integers of shapes and splits, what
// Python raises.
#pragma once

#include <vector>

#include "binding.h"

namespace hvdlite::python {

// The UTF-8 text of a str, for the name of an operation; the text is valid while the str lives. Null, without a Python error,
// if the str has a null character or a surrogate: the engine's texts have neither.
const char* name_in(PyObject* text);

// The integers of any Python sequence.
std::vector<std::int64_t> integers_of(nb::handle sequence);

// Requests made from a sequence of tuples with the items of hvdlite.requests.Request. Trailing items may be missing; their
// defaults are those of Request. A pointer may also be an object with the buffer protocol. The tuples must outlive this object.
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
