// Arrays and tensors whose memory the engine uses as it is: what native code knows about their type, and about one of them.
// Thread: with the GIL held. Owns: references to objects of the type's framework; the export of a buffer, which keeps an array
// from being resized. Blocks: no. Throws: nb::python_error, as each function says.
#pragma once

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "binding.h"
#include "result.h"

namespace hvdlite::python {

struct ExchangeApi;
class PlainMemory;

// A type of arrays, described by its backend (Plain in hvdlite/backends/base.py).
class PlainType {
 public:
  // Throws if `plain` is no Plain.
  PlainType(nb::handle type, nb::handle plain);

  nb::handle type() const { return type_; }
  // Is this a special value of the type, whose memory does not hold its value? Throws what the value's method raises.
  bool excludes(nb::handle array) const;
  // Is the framework in a mode in which any value may stand for more than its memory?
  bool in_special_mode() const;
  // Do outputs of this size use the engine's memory?
  bool recycles(std::int64_t bytes) const { return bytes >= recycled_from_; }
  // Another array with this one's shape and dtype, in memory of its own. `of` is this one's memory. Throws what the framework
  // raises, and std::bad_alloc.
  nb::object new_like(nb::handle array, const PlainMemory& of) const;
  // The same in memory from new_memory(bytes). Throws what the framework raises.
  nb::object empty_like(nb::handle array, nb::handle new_memory) const;
  // An array over memory of the engine, with this one's dtype. `of` is this one's memory. Throws as new_like().
  nb::object wrap(OwnedBytes bytes, const std::vector<std::int64_t>& shape, nb::handle array,
                  const PlainMemory& of) const;
  // Tells the framework that the engine has written to this array. Throws what it raises.
  void tell_written(nb::handle array) const;
  // The callable that tell_written() calls, or None.
  nb::handle mark_written() const { return mark_written_; }

 private:
  friend class PlainMemory;

  nb::object adopted(std::span<const std::int64_t> shape, nb::dlpack::dtype dtype,
                     std::size_t bytes, hvdlite_block* memory) const;

  nb::object type_;
  nb::object new_like_, empty_like_,
      wrap_;  // the first may be None for types with an exchange table
  long long recycled_from_ = 0;
  nb::object mark_written_, unless_;  // may be None
  nb::object mode_;                   // None, or a dict, a key and its usual value
  nb::object dtypes_;                 // for types with the buffer protocol, or None
  nb::object exchange_, codes_;       // keep what the next two pointers point to
  const ExchangeApi* api_ = nullptr;
  const char* table_ = nullptr;
  std::size_t table_size_ = 0;
};

// The memory of one array on the host, if the engine can use it: dense in row-major order, aligned, of a known dtype.
class PlainMemory {
 public:
  PlainMemory(const PlainType& type, nb::handle array, bool writable);
  ~PlainMemory();
  PlainMemory(const PlainMemory&) = delete;
  PlainMemory& operator=(const PlainMemory&) = delete;

  bool usable() const { return usable_; }
  // Valid while the array does not change.
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
