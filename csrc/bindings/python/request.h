// Converts Python's requests to the C ABI's.
// Thread: with the GIL held. Owns: the integers of shapes and splits; it borrows strings from the Python objects. Blocks: no.
// Throws: TypeError, which names the argument; InvalidArgumentError for a name; for the integers of shapes and splits, what
// Python raises.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "binding.h"

namespace hvdlite::python {

// A str as the name of an operation; it belongs to the str. Null, without a Python error, if it has a null character or a
// surrogate, and so is no text for the engine.
const char* name_in(PyObject* text);

// The integers of any Python sequence. Up to 8 of them need no heap allocation.
class Int64List {
 public:
  explicit Int64List(nb::handle sequence);
  const std::int64_t* data() const { return heap_.empty() ? local_.data() : heap_.data(); }
  std::int32_t size() const { return size_; }

 private:
  static constexpr std::size_t kLocal = 8;
  std::array<std::int64_t, kLocal> local_;
  std::vector<std::int64_t> heap_;
  std::int32_t size_ = 0;
};

// Requests made from tuples with the items of hvdlite.requests.Request. Trailing items may be missing; their defaults are the
// same. A pointer may also be an object with the buffer protocol. The tuples must outlive this object.
class Requests {
 public:
  // A sequence of tuples.
  static Requests of_sequence(nb::handle sequence);
  Requests(Requests&&) = default;
  const hvdlite_request* data() const { return natives_.data(); }
  std::size_t size() const { return natives_.size(); }

 private:
  Requests() = default;
  void add(nb::handle tuple);
  void set_pointers();

  std::vector<hvdlite_request> natives_;
  std::vector<std::int64_t> integers_;  // of the first shape, the first splits, the second shape...
};

}  // namespace hvdlite::python
