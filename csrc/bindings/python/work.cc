#include "work.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "ending.h"
#include "engine.h"
#include "last_step.h"
#include "result.h"

namespace hvdlite::python {

using namespace nb::literals;
using Stage = Work::Stage;

namespace {

PyTypeObject* work_type;

Engine& engine_of(const Work& work) { return *nb::inst_ptr<Engine>(work.engine); }

// --- what the engine says of a work that has ended --------------------------------------------------------------------

// The texts and lists in it are valid until the work is released.
std::vector<hvdlite_result> native_results(const Work& work) {
  std::vector<hvdlite_result> results(work.size);
  std::size_t count = 0;
  check(hvdlite_results(engine_of(work).get(), work.number, results.data(), work.size, &count));
  return results;
}

// The errors of the operations that failed, by place. Making errors runs Python code, and so perhaps other threads, which may
// release the work; so the texts are copied first.
std::vector<nb::object> errors_of(const Work& work, const std::vector<hvdlite_result>& results) {
  std::vector<nb::object> errors(results.size());
  if (work.failed == 0) return errors;
  std::vector<std::string> texts;
  for (const hvdlite_result& result : results) {
    texts.emplace_back(result.error != nullptr ? result.error : "");
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].code != HVDLITE_OK) errors[i] = make_error(results[i].code, texts[i]);
  }
  return errors;
}

void release(Work& work) {
  hvdlite_release(engine_of(work).get(), work.number);
  work.stage = Stage::kReleased;
}

void require_ended(const Work& work) {
  if (work.stage == Stage::kInFlight) {
    throw nb::value_error("the operations have not ended yet; wait for them first");
  }
}

// The empty results of a work whose results were dropped, or that never had any.
nb::object no_results(const Work& work) {
  nb::list list;
  for (std::size_t i = 0; i < work.size; ++i) list.append(nb::none());
  return list;
}

nb::object results(nb::handle self) {
  Work& work = work_of(self);
  require_ended(work);
  if (work.stage == Stage::kEnded) {
    const std::vector<hvdlite_result> natives = native_results(work);
    const std::vector<nb::object> errors = errors_of(work, natives);
    const nb::object list = checked(PyList_New(static_cast<Py_ssize_t>(work.size)));
    if (work.stage == Stage::kEnded) {  // no other thread has taken them meanwhile
      for (std::size_t i = 0; i < natives.size(); ++i) {
        nb::object result =
            errors[i].is_valid()
                ? errors[i]
                : nb::cast(take_result(engine_of(work).get(), work.number, i, natives[i]));
        PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), result.release().ptr());
      }
      Py_XSETREF(work.results, Py_NewRef(list.ptr()));
      release(work);
    }
  }
  return work.results != nullptr ? nb::borrow(work.results) : no_results(work);
}

// --- the methods ------------------------------------------------------------------------------------------------------

bool poll(nb::handle self) {
  const Work& work = work_of(self);
  if (work.stage != Stage::kInFlight) return true;
  int done = 0;
  check(hvdlite_poll(engine_of(work).get(), work.number, &done));
  return done != 0;
}

void wait(nb::handle self, double limit, nb::handle streams) {
  Work* const work = &work_of(self);
  wait_for({&work, 1}, limit, streams);
}

// Does not store a failure: an error held by the work would hold the work, through its traceback.
nb::object result(nb::handle self, double limit, nb::handle streams) {
  const Work& work = work_of(self);
  wait(self, limit, streams);
  if (work.size != 1) throw nb::value_error("a result is of one operation");
  if (work.stage == Stage::kEnded && work.failed != 0) {
    const hvdlite_result failed = native_results(work).front();
    raise_error(failed.code, failed.error);
  }
  return nb::borrow(PyList_GET_ITEM(results(self).ptr(), 0));
}

nb::object outputs(nb::handle self, double limit) {
  Work* const work = &work_of(self);
  const nb::object steps = nb::borrow(work->memory);
  if (!is_last_steps(steps.ptr()) || work->stage == Stage::kNew) {
    return nb::borrow(Py_NotImplemented);
  }
  if (work->stage == Stage::kInFlight) wait_for({&work, 1}, limit, nb::tuple());
  if (work->stage == Stage::kEnded) {
    if (work->failed != 0) return nb::borrow(Py_NotImplemented);
    release(*work);
  }
  // results() was called before, as Handle does after a failure: there are no outputs.
  if (work->results != nullptr) return nb::borrow(Py_NotImplemented);
  return outputs_of(steps.ptr());
}

// --- the type ---------------------------------------------------------------------------------------------------------

// Keeps the exception that is being raised; nothing here raises.
void finalize_work(PyObject* self) {
  Work& work = *reinterpret_cast<Work*>(self);
  if (work.stage == Stage::kInFlight) engine_of(work).keep_dropped(self);
}

// All references but that to the engine, which has the operations.
std::array<PyObject**, 5> references_of(PyObject* self) {
  auto* work = reinterpret_cast<Work*>(self);
  return {&work->memory, &work->streams, &work->results, &work->on_gpu, &work->error};
}

int visit_work(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<Work*>(self)->engine);
  for (PyObject** reference : references_of(self)) Py_VISIT(*reference);
  return 0;
}

int clear_work(PyObject* self) {
  for (PyObject** reference : references_of(self)) Py_CLEAR(*reference);
  return 0;
}

int free_members(PyObject* self) {
  auto* work = reinterpret_cast<Work*>(self);
  if (work->stage == Stage::kEnded && engine_of(*work).is_here()) release(*work);
  clear_work(self);
  Py_CLEAR(work->engine);
  return 0;
}

void free_work(PyObject* self) {
  if (PyObject_CallFinalizerFromDealloc(self) < 0) return;  // the engine keeps the work
  free_object<free_members>(self);
}

PyMemberDef work_members[] = {{"_engine", T_OBJECT, offsetof(Work, engine), 0, nullptr},
                              {"_finish", T_OBJECT, offsetof(Work, memory), 0, nullptr},
                              {"_on_gpu", T_OBJECT, offsetof(Work, on_gpu), 0, nullptr},
                              {"_error", T_OBJECT, offsetof(Work, error), 0, nullptr},
                              {"_grouped", T_BOOL, offsetof(Work, grouped), 0, nullptr},
                              {"number", T_LONGLONG, offsetof(Work, number), READONLY, nullptr},
                              {"size", T_PYSSIZET, offsetof(Work, size), READONLY, nullptr},
                              {}};

PyType_Slot work_slots[] = {{Py_tp_new, slot_of(PyType_GenericNew)},
                            {Py_tp_finalize, slot_of(finalize_work)},
                            {Py_tp_traverse, slot_of(visit_work)},
                            {Py_tp_clear, slot_of(clear_work)},
                            {Py_tp_dealloc, slot_of(free_work)},
                            {Py_tp_members, work_members},
                            {0, nullptr}};

template <typename Function, typename... Extra>
void add_method(const char* name, Function function, const Extra&... extra) {
  const nb::handle type(reinterpret_cast<PyObject*>(work_type));
  type.attr(name) =
      nb::cpp_function(function, nb::name(name), nb::scope(type), nb::is_method(), extra...);
}

}  // namespace

nb::object new_work(nb::handle type, nb::object memory, bool grouped) {
  auto* const its_type = type.is_valid() ? reinterpret_cast<PyTypeObject*>(type.ptr()) : work_type;
  nb::object made = checked(its_type->tp_alloc(its_type, 0));
  Work& work = *reinterpret_cast<Work*>(made.ptr());
  work.memory = memory.release().ptr();
  work.grouped = grouped ? 1 : 0;
  return made;
}

void check_work_type(nb::handle type) {
  if (PyType_Check(type.ptr()) == 0 ||
      PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()), work_type) == 0) {
    throw nb::type_error("this is no class derived from Work");
  }
}

Work& work_of(nb::handle object) {
  if (PyObject_TypeCheck(object.ptr(), work_type) == 0) {
    throw nb::type_error("this is no work that an engine has given");
  }
  return *reinterpret_cast<Work*>(object.ptr());
}

void set_in_flight(Work& work, nb::handle engine, std::int64_t number, std::size_t size,
                   nb::object streams) {
  work.number = number;
  work.size = size;
  work.stage = Stage::kInFlight;
  Py_XSETREF(work.engine, Py_NewRef(engine.ptr()));
  Py_XSETREF(work.streams, streams.release().ptr());
}

void set_ended(Work& work) {
  work.stage = Stage::kEnded;
  bool in_use = false;
  for (const hvdlite_result& result : native_results(work)) {
    if (result.code != HVDLITE_OK) work.failed = 1;
    in_use = in_use || !memory_is_free(result.code);
  }
  if (in_use) Py_XINCREF(work.memory);
}

void wait_for(std::span<Work* const> works, double limit, nb::handle streams) {
  std::int64_t one = 0;
  std::vector<std::int64_t> many(works.size() > 1 ? works.size() : 0);
  std::int64_t* const numbers = many.empty() ? &one : many.data();
  std::size_t count = 0;
  Engine* engine = nullptr;
  const auto waits = [](const Work* work) { return work->stage == Stage::kInFlight; };
  for (const Work* work : works) {
    if (!waits(work)) continue;
    if (engine != nullptr && engine != &engine_of(*work)) {
      throw nb::value_error("works of several engines cannot be waited for together");
    }
    engine = &engine_of(*work);
    numbers[count++] = work->number;
  }
  if (engine == nullptr) return;
  const WaitResult outcome = engine->wait_in_slices(numbers, count, limit);
  // Another thread may have waited as well and been faster; then the engine does not know the operations any more.
  if (!outcome.ended && std::ranges::any_of(works, waits)) {
    raise_error(outcome.code, outcome.message);
  }
  if (nb::len(streams) > 0) {
    for (const Work* work : works) {
      if (waits(work)) engine->order(work->number, streams);
    }
  }
  for (Work* work : works) {
    if (!waits(work)) continue;
    if (outcome.code == HVDLITE_OK) {
      work->stage = Stage::kEnded;
    } else {
      set_ended(*work);
    }
  }
}

bool take_contributors(std::span<Work* const> works, nb::list outcomes) {
  bool all_well = true;
  nb::list what;
  for (const Work* work : works) {
    const std::vector<hvdlite_result> natives = native_results(*work);
    const std::vector<nb::object> errors = errors_of(*work, natives);
    for (std::size_t i = 0; i < natives.size(); ++i) {
      what.append(errors[i].is_valid() ? errors[i] : nb::int_(natives[i].contributors));
    }
    all_well = all_well && work->failed == 0;
  }
  outcomes.extend(what);
  for (Work* work : works) release(*work);
  return all_well;
}

void register_work(nb::module_& module) {
  work_type = add_type<Work>(module, "hvdlite._engine.Work", kBase, work_slots);
  add_method("poll", &poll);
  add_method("wait", &wait, "limit"_a = kNoLimit, "streams"_a = nb::tuple());
  add_method("results", &results);
  add_method("result", &result, "limit"_a = kNoLimit, "streams"_a = nb::tuple());
  add_method("_outputs", &outputs, "limit"_a);
}

}  // namespace hvdlite::python
