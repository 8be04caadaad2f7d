#include "request.h"

#include <algorithm>
#include <string>

namespace hvdlite::python {

namespace {

std::int64_t to_int64(PyObject* value) {
  const long long number = PyLong_AsLongLong(value);
  if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

// Hands out the items of a tuple one by one, converted.
class Arguments {
 public:
  explicit Arguments(nb::handle tuple) : tuple_(tuple) {
    if (!PyTuple_Check(tuple.ptr())) throw nb::type_error("each request must be a tuple");
    size_ = PyTuple_GET_SIZE(tuple.ptr());
  }

  template <typename T>
  T required(const char* name) {
    if (next_ >= size_) {
      throw nb::type_error((std::string("a request lacks its argument '") + name + "'").c_str());
    }
    return take<T>(name);
  }

  template <typename T>
  void optional(const char* name, T& value) {
    if (next_ < size_) value = take<T>(name);
  }

  void finish() const {
    if (next_ < size_) throw nb::type_error("a request has too many arguments");
  }

 private:
  nb::handle at(Py_ssize_t index) const { return PyTuple_GET_ITEM(tuple_.ptr(), index); }

  template <typename T>
  T take(const char* name) {
    T value{};
    if (!nb::try_cast(at(next_), value)) {
      const std::string shown = nb::repr(at(next_)).c_str();
      throw nb::type_error((std::string("a request has a bad '") + name + "': " + shown).c_str());
    }
    ++next_;
    return value;
  }

  nb::handle tuple_;
  Py_ssize_t size_ = 0;
  Py_ssize_t next_ = 0;
};

}  // namespace

Int64List::Int64List(nb::handle sequence) {
  const nb::object fast =
      nb::steal(PySequence_Fast(sequence.ptr(), "expected a sequence of integers"));
  if (!fast.is_valid()) throw nb::python_error();
  const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
  if (count > kLocal) heap_.resize(count);
  std::int64_t* values = count > kLocal ? heap_.data() : local_.data();
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = to_int64(PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(i)));
  }
  size_ = static_cast<std::int32_t>(count);
}

hvdlite_request Request::native() const {
  hvdlite_request request{};
  request.kind = kind;
  request.dtype = dtype;
  request.op = op;
  request.root = root;
  request.process_set = process_set;
  request.device = device;
  request.layout = layout;
  request.flags = flags;
  request.name = name;
  request.ndim = shape.size();
  request.shape = shape.data();
  request.input = reinterpret_cast<const void*>(input);
  request.output = reinterpret_cast<void*>(output);
  request.prescale = prescale;
  request.postscale = postscale;
  request.group = group;
  request.group_size = group_size;
  request.group_index = group_index;
  request.num_splits = splits.size();
  request.splits = splits.data();
  request.arena = arena;
  return request;
}

Request request_from_tuple(nb::handle tuple) {
  Arguments arguments(tuple);
  Request request;
  request.kind = arguments.required<std::int32_t>("kind");
  request.name = arguments.required<const char*>("name");
  request.dtype = arguments.required<std::int32_t>("dtype");
  request.shape = Int64List(arguments.required<nb::handle>("shape"));
  request.input = arguments.required<std::uintptr_t>("input_ptr");
  request.output = arguments.required<std::uintptr_t>("output_ptr");
  arguments.optional("op", request.op);
  arguments.optional("root", request.root);
  arguments.optional("process_set", request.process_set);
  arguments.optional("prescale", request.prescale);
  arguments.optional("postscale", request.postscale);
  arguments.optional("group", request.group);
  arguments.optional("group_size", request.group_size);
  arguments.optional("group_index", request.group_index);
  nb::handle splits;
  arguments.optional("splits", splits);
  if (splits.is_valid()) request.splits = Int64List(splits);
  arguments.optional("device", request.device);
  arguments.optional("layout", request.layout);
  arguments.optional("flags", request.flags);
  arguments.optional("arena", request.arena);
  arguments.finish();
  return request;
}

}  // namespace hvdlite::python
