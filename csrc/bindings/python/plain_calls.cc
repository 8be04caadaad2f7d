// Allreduces, broadcasts, allgathers, reducescatters and messages of plain tensors, whose memory the engine can use as it is.
// Native code reads the user's arguments and describes the tensors, in place of hvdlite/submission.py. Submission and wait are
// the usual ones. For unusual arguments a call returns None, and submission.py handles it. Reason: in a tiny allreduce Python
// takes much of the time, and if processes share a core, all of them wait for it.

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "engine.h"
#include "last_step.h"
#include "work.h"

namespace hvdlite::python {

namespace {

// Reads a plain number. Subclasses and numbers of other libraries are left to submission.py.
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

// Reads the set's id, if this rank is a member.
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

// Reads all arguments of an allreduce except its name and its memory.
bool read_allreduce(hvdlite_request& request, nb::handle average, nb::handle op,
                    nb::handle prescale, nb::handle postscale, nb::handle process_set) {
  request.kind = HVDLITE_ALLREDUCE;
  request.op = HVDLITE_AVERAGE;
  return average.is_none() && (op.is_none() || read_int(op, request.op)) &&
         request.op >= HVDLITE_AVERAGE && request.op <= HVDLITE_PRODUCT &&
         read_factor(prescale, request.prescale) && read_factor(postscale, request.postscale) &&
         read_set(process_set, request.process_set);
}

// Makes a name from `kind` and the argument; for None there is no name. Returns false for what is no str, and for a text that
// the engine cannot take as a name (name_in).
bool read_name(nb::handle from, const char* kind, std::string& to) {
  if (from.is_none()) return true;
  const char* text = PyUnicode_CheckExact(from.ptr()) ? name_in(from.ptr()) : nullptr;
  if (text == nullptr) return false;
  to = std::string(kind) + text;
  return true;
}

bool has_rank(nb::handle process_set, nb::handle rank) {
  static PyObject* const kRanks = PyUnicode_InternFromString("ranks");
  const nb::object ranks = nb::steal(PyObject_GetAttr(process_set.ptr(), kRanks));
  if (ranks.is_valid() && PyList_CheckExact(ranks.ptr())) {
    if (PySequence_Contains(ranks.ptr(), rank.ptr()) == 1) return true;
  }
  PyErr_Clear();
  return false;
}

// The kind, the rank and the tag of a message.
bool read_message(hvdlite_request& request, int kind, nb::handle peer, nb::handle tag,
                  nb::handle process_set) {
  request.kind = kind;
  request.op = HVDLITE_SUM;
  request.prescale = request.postscale = 1.0;
  return read_int(peer, request.root) && request.root >= 0 && read_int(tag, request.tag) &&
         request.tag >= 0 && read_set(process_set, request.process_set);
}

const char* name_of_message(int kind) { return kind == HVDLITE_SEND ? "send." : "recv."; }

}  // namespace

void Engine::connect(nb::handle plain_of, nb::handle work_type) {
  if (!work_type.is_none()) check_work_type(work_type);
  work_type_ = work_type.is_none() ? nb::object() : nb::borrow(work_type);
  plain_of_ = nb::borrow(plain_of);
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

// Adds the memory of one tensor.
bool Engine::read_input(hvdlite_request& request, Operands& operands, nb::handle input,
                        bool writable) {
  const PlainType* type = plain_type_of(input);
  if (type == nullptr || type->in_special_mode() || type->excludes(input)) return false;
  operands.type = type;
  const PlainMemory& from = operands.from.emplace(*type, input, writable);
  if (!from.usable()) return false;
  request.dtype = from.dtype();
  request.ndim = from.ndim();
  request.shape = from.shape();
  request.input = from.data();
  request.group = "";
  request.device = HVDLITE_DEVICE_CPU;
  return true;
}

// The same, and the memory of its output.
bool Engine::read_memory(hvdlite_request& request, Operands& operands, nb::handle input,
                         bool in_place) {
  if (!read_input(request, operands, input, in_place)) return false;
  const PlainType* type = operands.type;
  const PlainMemory& from = *operands.from;
  operands.output = nb::borrow(input);
  if (!in_place) {
    operands.output = type->recycles(from.bytes())
                          ? type->empty_like(input, nb::find(*this).attr("new_output"))
                          : type->new_like(input, from);
    operands.to.emplace(*type, operands.output, true);
  }
  const PlainMemory& to = operands.to ? *operands.to : from;
  if (!to.usable() || to.bytes() != from.bytes() || to.dtype() != from.dtype()) return false;
  request.output = to.data();
  return true;
}

// What is left to do when the operation has ended. The output of a send is None.
nb::object Engine::step_of(const hvdlite_request& request, const Operands& operands,
                           nb::handle input, bool in_place) {
  if (request.kind == HVDLITE_SEND) return new_step(Py_None, input, Py_None);
  return new_step(operands.output, input,
                  in_place ? operands.type->mark_written() : nb::handle(Py_None));
}

// Adds the name and the memory, and submits the complete request. kind: the beginning of the operations' names.
nb::object Engine::run_plain(hvdlite_request& request, const char* kind, nb::handle name,
                             nb::handle input, bool in_place, bool blocking) {
  Operands operands;
  if ((!blocking && !work_type_.is_valid()) || !read_name(name, kind, operands.name) ||
      !read_memory(request, operands, input, in_place)) {
    return nb::none();
  }
  request.name = operands.name.c_str();
  const hvdlite_submission what = submission_of({&request, 1}, !blocking);
  if (!blocking) {
    nb::object step = step_of(request, operands, input, in_place);
    return start_work(what, new_work(work_type_, std::move(step), false), {});
  }
  hvdlite_release(engine_, run(what, input, operands.output));
  if (in_place && request.kind != HVDLITE_SEND) operands.type->tell_written(operands.output);
  return std::move(operands.output);
}

nb::object Engine::allreduce(nb::handle tensor, nb::handle average, nb::handle name, nb::handle op,
                             nb::handle prescale, nb::handle postscale, nb::handle process_set,
                             bool in_place, bool blocking) {
  hvdlite_request request{};
  if (!read_allreduce(request, average, op, prescale, postscale, process_set)) return nb::none();
  return run_plain(request, kAllreduceName, name, tensor, in_place, blocking);
}

nb::object Engine::broadcast(nb::handle tensor, nb::handle root, nb::handle name,
                             nb::handle process_set, bool in_place, bool blocking) {
  hvdlite_request request{};
  request.kind = HVDLITE_BROADCAST;
  request.op = HVDLITE_SUM;
  request.prescale = request.postscale = 1.0;
  const bool usual = read_int(root, request.root) && read_set(process_set, request.process_set) &&
                     has_rank(process_set, root);
  return usual ? run_plain(request, "broadcast.", name, tensor, in_place, blocking) : nb::none();
}

nb::object Engine::new_shape(int kind, nb::handle tensor, nb::handle name, nb::handle op,
                             nb::handle prescale, nb::handle postscale, nb::handle process_set) {
  hvdlite_request request{};
  request.kind = kind;
  Operands operands;
  const char* const kind_name = kind == HVDLITE_ALLGATHER ? "allgather." : "reducescatter.";
  if (!read_int(op, request.op) || !read_factor(prescale, request.prescale) ||
      !read_factor(postscale, request.postscale) || !read_set(process_set, request.process_set) ||
      !read_name(name, kind_name, operands.name) || !read_input(request, operands, tensor, false) ||
      request.ndim == 0) {
    return nb::none();
  }
  request.name = operands.name.c_str();
  const std::int64_t number = run(submission_of({&request, 1}, false), tensor, tensor);
  hvdlite_result native{};
  std::size_t count = 0;
  check(hvdlite_results(engine_, number, &native, 1, &count));
  Result result = take_result(engine_, number, 0, native);
  hvdlite_release(engine_, number);
  return operands.type->wrap(std::move(result.output), result.shape, tensor, *operands.from);
}

nb::object Engine::message(int kind, nb::handle tensor, nb::handle peer, nb::handle tag,
                           nb::handle name, nb::handle process_set, bool blocking) {
  hvdlite_request request{};
  if (!read_message(request, kind, peer, tag, process_set)) return nb::none();
  return run_plain(request, name_of_message(kind), name, tensor, /*in_place=*/true, blocking);
}

nb::object Engine::messages(const std::vector<int>& kinds, nb::handle operations,
                            nb::handle process_set) {
  const nb::object all = checked(PySequence_Tuple(operations.ptr()));
  const std::size_t count = kinds.size();
  if (count == 0 || !work_type_.is_valid()) return nb::none();
  if (static_cast<std::size_t>(PyTuple_GET_SIZE(all.ptr())) != count) {
    throw nb::value_error("there is one kind for each operation");
  }
  std::vector<hvdlite_request> requests(count);
  std::deque<Operands> memory(count);
  nb::object steps = checked(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; i < count; ++i) {
    const auto place = static_cast<Py_ssize_t>(i);
    const nb::handle operation = PyTuple_GET_ITEM(all.ptr(), place);
    if (PyTuple_Check(operation.ptr()) == 0 || PyTuple_GET_SIZE(operation.ptr()) != 5) {
      return nb::none();
    }
    const auto item = [&](Py_ssize_t which) {  // op, tensor, peer, tag, name
      return nb::handle(PyTuple_GET_ITEM(operation.ptr(), which));
    };
    if (!read_message(requests[i], kinds[i], item(2), item(3), process_set) ||
        !read_name(item(4), name_of_message(kinds[i]), memory[i].name) ||
        !read_memory(requests[i], memory[i], item(1), true)) {
      return nb::none();
    }
    requests[i].name = memory[i].name.c_str();
    nb::object step = step_of(requests[i], memory[i], item(1), true);
    PyTuple_SET_ITEM(steps.ptr(), place, step.release().ptr());
  }
  return start_work(submission_of(requests, true), new_work(work_type_, std::move(steps), true),
                    {});
}

nb::object Engine::allreduce_group(nb::handle tensors, nb::handle name, nb::handle op,
                                   nb::handle prescale, nb::handle postscale,
                                   nb::handle process_set, bool in_place, bool wake) {
  hvdlite_request common{};
  std::string group;
  const bool usual = PyList_CheckExact(tensors.ptr()) || PyTuple_CheckExact(tensors.ptr());
  if (!usual || !work_type_.is_valid() || !read_name(name, kAllreduceName, group) ||
      !read_allreduce(common, nb::none(), op, prescale, postscale, process_set)) {
    return nb::none();
  }
  const nb::object all = checked(PySequence_Tuple(tensors.ptr()));
  const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(all.ptr()));
  if (count == 0) return nb::none();
  common.group_size = static_cast<std::int32_t>(count);
  std::vector<hvdlite_request> requests(count, common);
  std::deque<Operands> memory(count);
  nb::object steps = checked(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; i < count; ++i) {
    hvdlite_request& request = requests[i];
    const auto place = static_cast<Py_ssize_t>(i);
    const nb::handle tensor = PyTuple_GET_ITEM(all.ptr(), place);
    if (!read_memory(request, memory[i], tensor, in_place)) return nb::none();
    request.group = group.c_str();
    request.group_index = static_cast<std::int32_t>(i);
    if (!group.empty()) {  // as hvdlite.requests.member_names
      memory[i].name = group + "_" + std::to_string(i + 1) + "of" + std::to_string(count);
      request.name = memory[i].name.c_str();
    }
    nb::object step = step_of(request, memory[i], tensor, in_place);
    PyTuple_SET_ITEM(steps.ptr(), place, step.release().ptr());
  }
  return start_work(submission_of(requests, wake), new_work(work_type_, std::move(steps), true),
                    {});
}

}  // namespace hvdlite::python
