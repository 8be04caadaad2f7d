#include "request.h"

#include <cstring>
#include <string>

namespace hvdlite::python {

namespace {

// The items of any sequence, as a list or a tuple.
nb::object items_of(nb::handle sequence, const char* expected) {
  return checked(PySequence_Fast(sequence.ptr(), expected));
}

// Appends the integers of a sequence. Returns their number.
std::int32_t append(nb::handle sequence, std::vector<std::int64_t>& integers) {
  const nb::object items = items_of(sequence, "expected a sequence of integers");
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    const long long number = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(items.ptr(), i));
    if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    integers.push_back(number);
  }
  return static_cast<std::int32_t>(count);
}

// If one of these conversions fails, it returns false and leaves no Python error behind. But the conversion of a text throws
// InvalidArgumentError if the text cannot be a name of the engine.
bool convert(PyObject* from, std::int32_t& to) {
  if (!PyLong_CheckExact(from)) return nb::try_cast(nb::handle(from), to);
  int overflow = 0;
  const long number = PyLong_AsLongAndOverflow(from, &overflow);
  to = static_cast<std::int32_t>(number);
  return overflow == 0 && to == number;
}

bool convert(PyObject* from, std::int64_t& to) { return nb::try_cast(nb::handle(from), to); }

bool convert(PyObject* from, double& to) {
  if (!PyFloat_CheckExact(from)) return nb::try_cast(nb::handle(from), to);
  to = PyFloat_AS_DOUBLE(from);
  return true;
}

// None becomes null, which is no text.
bool convert(PyObject* from, const char*& to) {
  if (from == Py_None) {
    to = nullptr;
    return true;
  }
  if (PyUnicode_Check(from) == 0) return false;
  to = name_in(from);
  if (to == nullptr) {
    raise_error(HVDLITE_E_INVALID_ARGUMENT,
                std::string("the name ") + nb::repr(nb::handle(from)).c_str() +
                    " has a null character or a surrogate; give the tensor another name");
  }
  return true;
}

// Converts an address, or an object with the buffer protocol. The caller keeps the object alive, and does not resize it.
bool convert_address(PyObject* from, void*& to, int flags) {
  if (PyLong_Check(from)) {
    to = PyLong_AsVoidPtr(from);
    if (PyErr_Occurred() == nullptr) return true;
  } else {
    Py_buffer view;
    if (PyObject_GetBuffer(from, &view, flags) == 0) {
      to = view.buf;
      PyBuffer_Release(&view);
      return true;
    }
  }
  PyErr_Clear();
  return false;
}

bool convert(PyObject* from, const void*& to) {
  void* address = nullptr;
  const bool converted = convert_address(from, address, PyBUF_SIMPLE);
  to = address;
  return converted;
}

bool convert(PyObject* from, void*& to) { return convert_address(from, to, PyBUF_WRITABLE); }

// Reads the items of a tuple one by one, and converts them.
class RequestTuple {
 public:
  explicit RequestTuple(nb::handle tuple) : tuple_(tuple) {
    if (!PyTuple_Check(tuple.ptr())) throw nb::type_error("each request must be a tuple");
    size_ = PyTuple_GET_SIZE(tuple.ptr());
  }

  template <typename T>
  void required(const char* name, T& value) {
    if (next_ >= size_) {
      throw nb::type_error((std::string("a request lacks its argument '") + name + "'").c_str());
    }
    take(name, value);
  }

  template <typename T>
  void optional(const char* name, T& value) {
    if (next_ < size_) take(name, value);
  }

  // Appends the integers of the next item, a sequence. Returns their number.
  std::int32_t append_to(std::vector<std::int64_t>& integers) {
    return next_ < size_ ? append(at(next_++), integers) : 0;
  }

  bool has_next() const { return next_ < size_; }

 private:
  PyObject* at(Py_ssize_t index) const { return PyTuple_GET_ITEM(tuple_.ptr(), index); }

  template <typename T>
  void take(const char* name, T& value) {
    PyObject* item = at(next_++);
    if (convert(item, value)) return;
    const std::string shown = nb::repr(nb::handle(item)).c_str();
    throw nb::type_error((std::string("a request has a bad '") + name + "': " + shown).c_str());
  }

  nb::handle tuple_;
  Py_ssize_t size_ = 0;
  Py_ssize_t next_ = 0;
};

}  // namespace

const char* name_in(PyObject* text) {
  Py_ssize_t size = 0;
  const char* const name = PyUnicode_AsUTF8AndSize(text, &size);
  if (name == nullptr) PyErr_Clear();
  return name != nullptr && std::strlen(name) == static_cast<std::size_t>(size) ? name : nullptr;
}

std::vector<std::int64_t> integers_of(nb::handle sequence) {
  std::vector<std::int64_t> integers;
  append(sequence, integers);
  return integers;
}

void Requests::add(nb::handle tuple) {
  RequestTuple arguments(tuple);
  hvdlite_request& request = natives_.emplace_back();
  request.op = 1;
  request.device = HVDLITE_DEVICE_CPU;
  request.prescale = request.postscale = 1.0;
  request.group = "";
  arguments.required("kind", request.kind);
  arguments.required("name", request.name);
  arguments.required("dtype", request.dtype);
  if (!arguments.has_next()) throw nb::type_error("a request lacks its argument 'shape'");
  request.ndim = arguments.append_to(integers_);
  arguments.required("input_ptr", request.input);
  arguments.required("output_ptr", request.output);
  arguments.optional("op", request.op);
  arguments.optional("root", request.root);
  arguments.optional("process_set", request.process_set);
  arguments.optional("prescale", request.prescale);
  arguments.optional("postscale", request.postscale);
  arguments.optional("group", request.group);
  arguments.optional("group_size", request.group_size);
  arguments.optional("group_index", request.group_index);
  request.num_splits = arguments.append_to(integers_);
  arguments.optional("device", request.device);
  arguments.optional("layout", request.layout);
  arguments.optional("flags", request.flags);
  arguments.optional("arena", request.arena);
  arguments.optional("stream", request.stream);
  arguments.optional("tag", request.tag);
  arguments.optional("weight", request.weight);
  arguments.optional("codec", request.codec);
  arguments.optional("codec_between", request.codec_between);
  arguments.optional("codec_block", request.codec_block);
  if (arguments.has_next()) throw nb::type_error("a request has too many arguments");
}

Requests::Requests(nb::handle sequence) {
  const nb::object items = items_of(sequence, "expected a sequence of requests");
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
  natives_.reserve(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) add(PySequence_Fast_GET_ITEM(items.ptr(), i));
  // From here on integers_ does not grow, so it stays where it is.
  const std::int64_t* integers = integers_.data();
  for (hvdlite_request& request : natives_) {
    request.shape = integers;
    request.splits = integers + request.ndim;
    integers = request.splits + request.num_splits;
  }
}

}  // namespace hvdlite::python
