// The memory of an array or tensor on the host, if the engine can use it as it is: dense in row-major order and aligned.
// Thread: with the GIL held. Owns: the export of a buffer, which keeps an array from being resized. Blocks: no. Throws:
// nb::python_error if `exchange` is something else.
#pragma once

#include <cstdint>

#include "binding.h"

namespace hvdlite::python {

class ArrayMemory {
 public:
  // exchange: None, and the array has the buffer protocol; or a pair: the capsule in `__dlpack_c_exchange_api__` of the array's
  // very type, and a table of dlpack_codes in hvdlite/dtypes.py.
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
  int dtype() const { return dtype_; }  // its code, if DLPack told it

 private:
  void from_buffer(nb::handle array, bool writable);
  void from_dlpack(nb::handle array, nb::handle exchange);

  Py_buffer view_{};
  void* data_ = nullptr;
  std::int32_t ndim_ = 0;
  const std::int64_t* shape_ = nullptr;
  std::int64_t bytes_ = 0;
  int dtype_ = -1;
  bool usable_ = false;
};

}  // namespace hvdlite::python
