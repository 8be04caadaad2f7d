// The short way of allreduces and of blocking broadcasts: from what the user passed to the result, or to an operation in flight,
// in one call, for tensors whose memory can be used as it is. Whatever is unusual about a call gives None here, and goes the
// general way (hvdlite/submission.py), which knows what to do or to say. Much of the time of a tiny allreduce is Python's, and
// where processes share a core all wait for it.

#include <optional>
#include <string>

#include "engine.h"

namespace hvdlite::python {

namespace {

// Of a plain number; subclasses and those of other libraries go the general way.
bool read_factor(nb::handle from, double& to) {
  if (PyFloat_CheckExact(from.ptr()) == 0) return false;
  to = PyFloat_AS_DOUBLE(from.ptr());
  return true;
}

bool read_int(nb::handle from, std::int32_t& to) {
  if (PyLong_CheckExact(from.ptr()) == 0) return false;
  int overflow = 0;
  const long number = PyLong_AsLongAndOverflow(from.ptr(), &overflow);
  to = static_cast<std::int32_t>(number);
  return overflow == 0 && to == number;
}

// The set's id if this rank is a member, as the set's attribute says.
bool read_set(nb::handle process_set, std::int32_t& to) {
  static PyObject* const kMemberId = PyUnicode_InternFromString("member_id");
  const nb::object id = nb::steal(PyObject_GetAttr(process_set.ptr(), kMemberId));
  if (!id.is_valid()) {
    PyErr_Clear();
    return false;
  }
  return read_int(id, to);
}

constexpr const char* kAllreduceName = "allreduce.";

// Everything about an allreduce but its name and its memory.
bool read_allreduce(hvdlite_request& request, nb::handle average, nb::handle op,
                    nb::handle prescale, nb::handle postscale, nb::handle process_set) {
  request.kind = HVDLITE_ALLREDUCE;
  request.op = HVDLITE_AVERAGE;
  return average.is_none() && (op.is_none() || read_int(op, request.op)) &&
         request.op >= HVDLITE_AVERAGE && request.op <= HVDLITE_PRODUCT &&
         read_factor(prescale, request.prescale) && read_factor(postscale, request.postscale) &&
         read_set(process_set, request.process_set);
}

bool has_rank(nb::handle process_set, nb::handle rank) {
  static PyObject* const kRanks = PyUnicode_InternFromString("ranks");
  const nb::object ranks = nb::steal(PyObject_GetAttr(process_set.ptr(), kRanks));
  if (ranks.is_valid() && PyList_CheckExact(ranks.ptr())) {
    return PySequence_Contains(ranks.ptr(), rank.ptr()) == 1;
  }
  PyErr_Clear();
  return false;
}

}  // namespace

void Engine::connect(nb::handle plain_of, nb::handle keep) {
  plain_of_ = nb::borrow(plain_of);
  keep_ = nb::borrow(keep);
  plain_types_.clear();
}

const PlainType* Engine::plain_type_of(nb::handle array) {
  const nb::handle type = array.type();
  for (const PlainType& known : plain_types_) {
    if (known.type().is(type)) return &known;
  }
  if (!plain_of_.is_valid()) return nullptr;
  const nb::object plain = plain_of_(array);
  if (plain.is_none()) return nullptr;
  return &plain_types_.emplace_back(type, plain);
}

// Adds what is left, the name and the memory, and does something with the complete request. kind: as the names of its operations
// begin. The request holds only inside of `act`.
template <typename Act>
nb::object Engine::with_memory(hvdlite_request& request, const char* kind, nb::handle name,
                               nb::handle input, bool in_place, Act act) {
  std::string full_name;
  if (!name.is_none()) {
    const char* text = PyUnicode_CheckExact(name.ptr()) ? PyUnicode_AsUTF8(name.ptr()) : nullptr;
    if (text == nullptr) {
      PyErr_Clear();
      return nb::none();
    }
    full_name = std::string(kind) + text;
    request.name = full_name.c_str();
  }
  const PlainType* type = plain_type_of(input);
  if (type == nullptr || type->excludes(input)) return nb::none();
  const PlainMemory from(*type, input, in_place);
  if (!from.usable()) return nb::none();
  nb::object output = nb::borrow(input);
  std::optional<PlainMemory> other;
  if (!in_place) {
    output = type->recycles(from.bytes())
                 ? type->empty_like(input, nb::find(*this).attr("new_output"))
                 : type->new_like(input, from);
    other.emplace(*type, output, true);
  }
  const PlainMemory& to = other ? *other : from;
  if (!to.usable() || to.bytes() != from.bytes() || to.dtype() != from.dtype()) return nb::none();
  request.dtype = from.dtype();
  request.ndim = from.ndim();
  request.shape = from.shape();
  request.input = from.data();
  request.output = to.data();
  request.group = "";
  request.device = HVDLITE_DEVICE_CPU;
  return act(*type, output);
}

nb::object Engine::allreduce_now(nb::handle tensor, nb::handle average, nb::handle name,
                                 nb::handle op, nb::handle prescale, nb::handle postscale,
                                 nb::handle process_set, bool in_place) {
  hvdlite_request request{};
  if (!read_allreduce(request, average, op, prescale, postscale, process_set)) return nb::none();
  return run_now(request, kAllreduceName, name, tensor, in_place);
}

nb::object Engine::start_allreduce(nb::handle tensor, nb::handle average, nb::handle name,
                                   nb::handle op, nb::handle prescale, nb::handle postscale,
                                   nb::handle process_set, bool in_place, nb::handle new_handle) {
  hvdlite_request request{};
  if (!read_allreduce(request, average, op, prescale, postscale, process_set)) return nb::none();
  const auto start = [&](const PlainType&, const nb::object& output) -> nb::object {
    static PyObject* const kNumbers = PyUnicode_InternFromString("_numbers");
    nb::object handle = new_handle(nb::find(*this), output, tensor, in_place);
    const nb::tuple numbers = nb::make_tuple(submit(request, true));
    if (PyObject_SetAttr(handle.ptr(), kNumbers, numbers.ptr()) != 0) throw nb::python_error();
    return handle;
  };
  return with_memory(request, kAllreduceName, name, tensor, in_place, start);
}

nb::object Engine::broadcast_now(nb::handle tensor, nb::handle root, nb::handle name,
                                 nb::handle process_set, bool in_place) {
  hvdlite_request request{};
  request.kind = HVDLITE_BROADCAST;
  request.op = HVDLITE_SUM;
  request.prescale = request.postscale = 1.0;
  const bool usual = read_int(root, request.root) && read_set(process_set, request.process_set) &&
                     has_rank(process_set, root);
  return usual ? run_now(request, "broadcast.", name, tensor, in_place) : nb::none();
}

nb::object Engine::run_now(hvdlite_request& request, const char* kind, nb::handle name,
                           nb::handle input, bool in_place) {
  return with_memory(request, kind, name, input, in_place,
                     [&](const PlainType& type, const nb::object& output) {
                       run_through(request, input, output);
                       if (in_place) type.mark_written(output);
                       return output;
                     });
}

}  // namespace hvdlite::python
