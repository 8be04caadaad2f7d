#include "plain_memory.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

namespace hvdlite::python {

// DLPack's DLManagedTensorVersioned: a tensor that another library keeps. That library calls the deleter at the end.
struct ManagedTensor {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedTensor* self);  // called by any thread
  std::uint64_t flags;
  nb::dlpack::dltensor tensor;
};

// The table of functions behind `__dlpack_c_exchange_api__`, as dlpack.h declares it from version 1.3 on. Its layout changes
// only with the major version.
struct ExchangeApi {
  std::uint32_t major, minor;
  const ExchangeApi* older;
  void (*unused[2])();
  int (*adopt)(
      ManagedTensor* tensor,
      void** object);  // takes the tensor over, even if it fails; -1: Python's error is set
  int (*describe)(
      void* object,
      nb::dlpack::dltensor* out);  // the object keeps the memory; -1: Python's error is set
};

namespace {

constexpr const char* kCapsuleName = "dlpack_exchange_api";
constexpr std::uint32_t kMajor = 1;
constexpr std::int32_t kHost = 1;  // kDLCPU
constexpr std::uint8_t kNoDtype = 255;
// The alignment of tensors made here; torch uses the same for its own.
constexpr std::size_t kAlignment = 64;

std::byte* aligned(std::byte* address) {
  return address + (~reinterpret_cast<std::uintptr_t>(address) + 1) % kAlignment;
}

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

// The dtype's code, from a table that hvdlite/dtypes.py made; -1: none.
int dtype_of(nb::dlpack::dtype type, const char* table, std::size_t table_size) {
  const std::size_t place = type.code * std::size_t{8} + std::countr_zero(type.bits / 8U);
  if (!std::has_single_bit(type.bits) || type.bits < 8 || type.lanes != 1 || place >= table_size) {
    return -1;
  }
  const auto code = static_cast<std::uint8_t>(table[place]);
  return code == kNoDtype ? -1 : code;
}

bool is_aligned(const void* data, std::size_t item_bytes) {
  // No element needs a larger alignment than a double: complex numbers need only that of their parts.
  const std::size_t unit = std::min(item_bytes, sizeof(double));
  return unit > 0 && reinterpret_cast<std::uintptr_t>(data) % unit == 0;
}

}  // namespace

// --- the type ---------------------------------------------------------------------------------------------------------

PlainType::PlainType(nb::handle type, nb::handle plain) : type_(nb::borrow(type)) {
  const nb::tuple items = nb::cast<nb::tuple>(plain);
  if (items.size() != 10) throw nb::type_error("plain: this is no Plain");
  new_like_ = items[0];
  empty_like_ = items[1];
  wrap_ = items[2];
  recycled_from_ = nb::cast<long long>(items[3]);
  mark_written_ = items[4];
  unless_ = items[5];
  dtypes_ = items[6];
  exchange_ = items[7];
  codes_ = items[8];
  mode_ = items[9];
  PyObject* const mode = mode_.ptr();
  if (mode != Py_None && (PyTuple_Check(mode) == 0 || PyTuple_GET_SIZE(mode) != 3 ||
                          PyDict_Check(PyTuple_GET_ITEM(mode, 0)) == 0)) {
    throw nb::type_error("plain: mode is no dict, key and value");
  }
  if (PyBytes_Check(codes_.ptr()) == 0) throw nb::type_error("plain: codes are no bytes");
  if (exchange_.is_none()) {
    if (PyDict_Check(dtypes_.ptr()) == 0) throw nb::type_error("plain: dtypes is no dict");
    return;
  }
  api_ = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(exchange_.ptr(), kCapsuleName));
  if (api_ == nullptr) throw nb::python_error();
  while (api_ != nullptr && api_->major != kMajor) api_ = api_->older;
  table_ = PyBytes_AS_STRING(codes_.ptr());
  table_size_ = static_cast<std::size_t>(PyBytes_GET_SIZE(codes_.ptr()));
}

bool PlainType::excludes(nb::handle array) const {
  if (unless_.is_none()) return false;
  return checked(PyObject_CallMethodNoArgs(array.ptr(), unless_.ptr())).ptr() != Py_False;
}

bool PlainType::in_special_mode() const {
  if (mode_.is_none()) return false;
  PyObject* const mode = mode_.ptr();
  PyObject* const value =
      PyDict_GetItemWithError(PyTuple_GET_ITEM(mode, 0), PyTuple_GET_ITEM(mode, 1));
  if (value == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
  return value != PyTuple_GET_ITEM(mode, 2);
}

// A framework adopts a tensor faster than it makes one: to make the result was the most expensive step of a tiny allreduce.
// DLPack's description, the shape and the elements lie in one allocation. memory: null, or the block that has the elements
// instead; the tensor takes the block over.
nb::object PlainType::adopted(std::span<const std::int64_t> shape, nb::dlpack::dtype dtype,
                              std::size_t bytes, hvdlite_block* memory) const {
  const std::size_t header = sizeof(ManagedTensor) + shape.size_bytes();
  // Aligned by hand, because glibc before 2.38 often does not reuse what aligned_alloc has given.
  auto* const block =
      static_cast<std::byte*>(std::malloc(header + (memory == nullptr ? kAlignment + bytes : 0)));
  if (block == nullptr) {
    hvdlite_block_free(memory);
    throw std::bad_alloc();
  }
  const auto end = [](ManagedTensor* self) {
    hvdlite_block_free(static_cast<hvdlite_block*>(self->context));
    std::free(self);
  };
  auto* const made = new (block) ManagedTensor{
      .major = kMajor, .minor = 0, .context = memory, .deleter = end, .flags = 0, .tensor = {}};
  auto* const extents = reinterpret_cast<std::int64_t*>(made + 1);
  std::ranges::copy(shape, extents);
  made->tensor.data = memory == nullptr ? aligned(block + header) : hvdlite_block_data(memory);
  made->tensor.device = {kHost, 0};
  made->tensor.ndim = static_cast<std::int32_t>(shape.size());
  made->tensor.dtype = dtype;
  made->tensor.shape = extents;  // strides: null, dense in row-major order
  void* object = nullptr;
  if (api_->adopt(made, &object) != 0) throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(object));
}

nb::object PlainType::new_like(nb::handle array, const PlainMemory& of) const {
  if (api_ == nullptr) return new_like_(array);
  const std::span shape(of.shape_, static_cast<std::size_t>(of.ndim_));
  return adopted(shape, of.dlpack_dtype_, static_cast<std::size_t>(of.bytes_), nullptr);
}

nb::object PlainType::wrap(OwnedBytes bytes, const std::vector<std::int64_t>& shape,
                           nb::handle array, const PlainMemory& of) const {
  if (api_ != nullptr && bytes.size > 0) {
    return adopted(shape, of.dlpack_dtype_, bytes.size, bytes.block.release());
  }
  return wrap_(as_memoryview(std::move(bytes)), as_tuple(shape), array);
}

nb::object PlainType::empty_like(nb::handle array, nb::handle new_memory) const {
  const nb::object made = empty_like_(array, new_memory);
  return nb::borrow(nb::borrow<nb::tuple>(made)[0]);
}

void PlainType::tell_written(nb::handle array) const {
  if (!mark_written_.is_none()) checked(PyObject_CallOneArg(mark_written_.ptr(), array.ptr()));
}

// --- one of them ------------------------------------------------------------------------------------------------------

PlainMemory::PlainMemory(const PlainType& type, nb::handle array, bool writable) {
  if (type.exchange_.is_none()) {
    from_buffer(type, array, writable);
  } else {
    from_dlpack(type, array);
  }
}

PlainMemory::~PlainMemory() { PyBuffer_Release(&view_); }

void PlainMemory::from_buffer(const PlainType& type, nb::handle array, bool writable) {
  static_assert(std::is_same_v<Py_ssize_t, std::int64_t>);
  static PyObject* const kDtype = PyUnicode_InternFromString("dtype");
  const nb::object dtype = checked(PyObject_GetAttr(array.ptr(), kDtype));
  PyObject* const code = PyDict_GetItemWithError(type.dtypes_.ptr(), dtype.ptr());
  const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
  if (code == nullptr || PyObject_GetBuffer(array.ptr(), &view_, flags) != 0) {
    PyErr_Clear();
    return;
  }
  dtype_ = static_cast<int>(PyLong_AsLong(code));
  data_ = view_.buf;
  ndim_ = view_.ndim;
  shape_ = view_.shape;
  bytes_ = view_.len;
  usable_ = is_aligned(data_, static_cast<std::size_t>(view_.itemsize));
}

void PlainMemory::from_dlpack(const PlainType& type, nb::handle array) {
  if (type.api_ == nullptr) return;
  nb::dlpack::dltensor tensor;
  if (type.api_->describe(array.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return;
  }
  dtype_ = dtype_of(tensor.dtype, type.table_, type.table_size_);
  dlpack_dtype_ = tensor.dtype;
  const std::size_t item_bytes = tensor.dtype.bits / std::size_t{8};
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  ndim_ = tensor.ndim;
  shape_ = tensor.shape;
  bytes_ = static_cast<std::int64_t>(item_bytes);
  for (std::int32_t axis = 0; axis < ndim_; ++axis) bytes_ *= shape_[axis];
  // A tensor of torch.func.functionalize, or one whose storage was freed, has no memory.
  const bool has_memory = tensor.data != nullptr || bytes_ == 0;
  usable_ = dtype_ >= 0 && has_memory && tensor.device.device_type == kHost && is_dense(tensor) &&
            is_aligned(data_, item_bytes);
}

}  // namespace hvdlite::python
