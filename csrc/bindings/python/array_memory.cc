#include "array_memory.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <type_traits>

namespace hvdlite::python {

namespace {

// The table of functions behind `__dlpack_c_exchange_api__`, as DLPack's dlpack.h declares it from version 1.3 on; the major
// version changes with its layout.
struct ExchangeApi {
  std::uint32_t major, minor;
  const ExchangeApi* older;
  void (*unused[3])();
  int (*describe)(
      void* object,
      nb::dlpack::dltensor* out);  // the object keeps what is described; -1: Python's error is set
};

constexpr const char* kCapsuleName = "dlpack_exchange_api";
constexpr std::uint32_t kMajor = 1;
constexpr std::int32_t kHost = 1;  // kDLCPU
constexpr std::uint8_t kNoDtype = 255;

bool is_dense(const nb::dlpack::dltensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (std::int32_t axis = tensor.ndim; axis-- > 0;) {
    if (tensor.shape[axis] == 0) return true;
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != expected) return false;
    expected *= tensor.shape[axis];
  }
  return true;
}

// The element type's code, by a table as it is in hvdlite/dtypes.py; -1: none.
int dtype_of(nb::dlpack::dtype type, const nb::bytes& codes) {
  const std::size_t place = type.code * std::size_t{8} + std::countr_zero(type.bits / 8U);
  if (!std::has_single_bit(type.bits) || type.bits < 8 || type.lanes != 1 || place >= codes.size())
    return -1;
  const auto code = static_cast<std::uint8_t>(codes.c_str()[place]);
  return code == kNoDtype ? -1 : code;
}

bool is_aligned(const void* data, std::size_t item_bytes) {
  const std::size_t unit =
      std::min(item_bytes, sizeof(double));  // complex numbers: at least to their parts
  return unit > 0 && reinterpret_cast<std::uintptr_t>(data) % unit == 0;
}

}  // namespace

ArrayMemory::ArrayMemory(nb::handle array, nb::handle exchange, bool writable) {
  if (exchange.is_none()) {
    from_buffer(array, writable);
  } else {
    from_dlpack(array, exchange);
  }
}

ArrayMemory::~ArrayMemory() { PyBuffer_Release(&view_); }

void ArrayMemory::from_buffer(nb::handle array, bool writable) {
  static_assert(std::is_same_v<Py_ssize_t, std::int64_t>);
  const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(array.ptr(), &view_, flags) != 0) {
    PyErr_Clear();
    return;
  }
  data_ = view_.buf;
  ndim_ = view_.ndim;
  shape_ = view_.shape;
  bytes_ = view_.len;
  usable_ = is_aligned(data_, static_cast<std::size_t>(view_.itemsize));
}

void ArrayMemory::from_dlpack(nb::handle array, nb::handle exchange) {
  PyObject* capsule = nullptr;
  PyObject* codes = nullptr;
  if (PyArg_ParseTuple(exchange.ptr(), "OS:exchange", &capsule, &codes) == 0)
    throw nb::python_error();
  const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule, kCapsuleName));
  if (api == nullptr) throw nb::python_error();
  while (api != nullptr && api->major != kMajor) api = api->older;
  if (api == nullptr) return;
  nb::dlpack::dltensor tensor;
  if (api->describe(array.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return;
  }
  dtype_ = dtype_of(tensor.dtype, nb::borrow<nb::bytes>(codes));
  const std::size_t item_bytes = tensor.dtype.bits / std::size_t{8};
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  ndim_ = tensor.ndim;
  shape_ = tensor.shape;
  bytes_ = static_cast<std::int64_t>(item_bytes);
  for (std::int32_t axis = 0; axis < ndim_; ++axis) bytes_ *= shape_[axis];
  usable_ = dtype_ >= 0 && tensor.device.device_type == kHost && is_dense(tensor) &&
            is_aligned(data_, item_bytes);
}

}  // namespace hvdlite::python
