// The memory of an array or tensor on the host, if the engine can use it as it is: dense in row-major order and aligned.
// Thread: with the GIL held. Owns: the export of a buffer, which keeps an array from being resized. Blocks: no. Throws:
// nb::python_error if the capsule is none of DLPack's.
#pragma once

#include <cstdint>

#include "binding.h"

namespace hvdlite::python {

class ArrayMemory {
 public:
  // exchange: the capsule in `__dlpack_c_exchange_api__` of the array's very type; None: it has the buffer protocol.
  ArrayMemory(nb::handle array, nb::handle exchange, bool writable);
  ~ArrayMemory();
  ArrayMemory(const ArrayMemory&) = delete;
  ArrayMemory& operator=(const ArrayMemory&) = delete;

  bool usable() const { return usable_; }
  // Valid while the array is not changed.
  void* data() const { return data_; }
  std::int32_t ndim() const { return ndim_; }
  const std::int64_t* shape() const { return shape_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  void from_buffer(nb::handle array, bool writable);
  void from_dlpack(nb::handle array, nb::handle exchange);

  Py_buffer view_{};
  void* data_ = nullptr;
  std::int32_t ndim_ = 0;
  const std::int64_t* shape_ = nullptr;
  std::int64_t bytes_ = 0;
  bool usable_ = false;
};

}  // namespace hvdlite::python
