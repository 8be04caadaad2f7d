// Arrays and tensors whose memory the engine uses as it is: what it takes to know of their type, and of one of them.
// Thread: with the GIL held. Owns: references to what the type's framework gave; the export of a buffer, which keeps an array
// from being resized. Blocks: no. Throws: nb::python_error as each function says.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>

#include "binding.h"

namespace hvdlite::python {

struct ExchangeApi;
class PlainMemory;

// A type of arrays, from what its backend said (Plain in hvdlite/backends/base.py).
class PlainType {
 public:
  // Throws if that is something else.
  PlainType(nb::handle type, nb::handle plain);

  nb::handle type() const { return type_; }
  // Is this one of the few values of the type whose memory is not their value? Throws what the value's method raises.
  bool excludes(nb::handle array) const;
  // Is the framework in a mode in which any value of the type may stand for more than its memory?
  bool in_special_mode() const;
  // Are tensors of so many bytes made in memory of the engine's?
  bool recycles(std::int64_t bytes) const { return bytes >= recycled_from_; }
  // Another array with the shape and dtype of this one, whose memory is `of`. Throws what the framework raises, and
  // std::bad_alloc.
  nb::object new_like(nb::handle array, const PlainMemory& of) const;
  // The same in memory that new_memory(bytes) gives. Throws what the framework raises.
  nb::object empty_like(nb::handle array, nb::handle new_memory) const;
  // The engine has written to this one. Throws what the framework raises.
  void tell_written(nb::handle array) const;
  // What is told of that, or None.
  nb::handle mark_written() const { return mark_written_; }

 private:
  friend class PlainMemory;

  nb::object type_;
  nb::object new_like_, empty_like_;  // the first may be None for types with an exchange table
  long long recycled_from_ = 0;
  nb::object mark_written_, unless_;  // may be None
  nb::object mode_;                   // a dict, a key and its usual value; or None
  nb::object dtypes_;                 // of types with the buffer protocol, or None
  nb::object exchange_, codes_;       // keep what the next two point to
  const ExchangeApi* api_ = nullptr;
  const char* table_ = nullptr;
  std::size_t table_size_ = 0;
};

// The memory of one of them on the host, if the engine can use it: dense in row-major order, aligned, of a dtype it knows.
class PlainMemory {
 public:
  PlainMemory(const PlainType& type, nb::handle array, bool writable);
  ~PlainMemory();
  PlainMemory(const PlainMemory&) = delete;
  PlainMemory& operator=(const PlainMemory&) = delete;

  bool usable() const { return usable_; }
  // Valid while the array is not changed.
  void* data() const { return data_; }
  std::int32_t ndim() const { return ndim_; }
  const std::int64_t* shape() const { return shape_; }
  std::int64_t bytes() const { return bytes_; }
  int dtype() const { return dtype_; }  // its code

 private:
  friend class PlainType;

  void from_buffer(const PlainType& type, nb::handle array, bool writable);
  void from_dlpack(const PlainType& type, nb::handle array);

  Py_buffer view_{};
  nb::dlpack::dtype dlpack_dtype_{};  // of types with an exchange table
  void* data_ = nullptr;
  std::int32_t ndim_ = 0;
  const std::int64_t* shape_ = nullptr;
  std::int64_t bytes_ = 0;
  int dtype_ = -1;
  bool usable_ = false;
};

}  // namespace hvdlite::python
