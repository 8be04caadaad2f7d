// Python's view of one request to the C ABI's, without a heap allocation for tensors of usual rank.
// Thread: with the GIL held. Owns: the integers of shape and splits; strings are borrowed. Blocks: no. Throws: TypeError.
#pragma once

#include <array>
#include <vector>

#include "binding.h"

namespace hvdlite::python {

// The integers of any Python sequence.
class Int64List {
 public:
  Int64List() = default;
  explicit Int64List(nb::handle sequence);
  const std::int64_t* data() const { return heap_.empty() ? local_.data() : heap_.data(); }
  std::int32_t size() const { return size_; }

 private:
  static constexpr std::size_t kLocal = 8;
  std::array<std::int64_t, kLocal> local_{};
  std::vector<std::int64_t> heap_;
  std::int32_t size_ = 0;
};

// The arguments of Engine.submit in their order; the defaults are those of _engine.pyi.
struct Request {
  std::int32_t kind = 0;
  const char* name = "";
  std::int32_t dtype = 0;
  Int64List shape;
  std::uintptr_t input = 0;
  std::uintptr_t output = 0;
  std::int32_t op = 1;
  std::int32_t root = 0;
  std::int32_t process_set = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  const char* group = "";
  std::int32_t group_size = 0;
  std::int32_t group_index = 0;
  Int64List splits;
  std::int32_t device = HVDLITE_DEVICE_CPU;
  std::int32_t layout = 0;
  std::int32_t flags = 0;
  std::int64_t arena = 0;

  hvdlite_request native() const;
};

// A tuple of submit's arguments in order; trailing ones may be missing. The tuple must outlive the request.
Request request_from_tuple(nb::handle arguments);

}  // namespace hvdlite::python
