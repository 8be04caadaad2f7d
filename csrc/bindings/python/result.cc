#include "result.h"

#include <utility>

namespace hvdlite::python {

namespace {

nb::tuple as_tuple(const std::vector<std::int64_t>& values) {
  nb::list list;
  for (std::int64_t value : values) list.append(value);
  return nb::tuple(list);
}

int export_bytes(PyObject* self, Py_buffer* view, int flags) noexcept {
  static char nothing;  // a buffer needs an address, also for zero bytes
  OwnedBytes* bytes = nb::inst_ptr<OwnedBytes>(self);
  void* data = bytes->size == 0 ? &nothing : hvdlite_block_data(bytes->block.get());
  return PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(bytes->size), 0, flags);
}

const PyType_Slot kBytesSlots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_bytes)},
                                   {0, nullptr}};

nb::object take_data(Result& result) {
  if (std::exchange(result.taken, true)) {
    throw nb::value_error("the data of this result was taken already");
  }
  return as_memoryview(std::move(result.output));
}

}  // namespace

nb::object as_memoryview(OwnedBytes bytes) {
  nb::object owner = nb::cast(std::move(bytes));
  PyObject* view = PyMemoryView_FromObject(owner.ptr());
  if (view == nullptr) throw nb::python_error();
  return nb::steal(view);
}

Result collect_result(hvdlite_engine* engine, std::int64_t handle) {
  hvdlite_result native{};
  check(hvdlite_result_get(engine, handle, &native));
  Result result;
  result.contributors = native.contributors;
  result.last_joined_rank = native.last_joined_rank;
  result.process_set = native.process_set;
  if (native.ndim > 0) result.shape.assign(native.shape, native.shape + native.ndim);
  if (native.num_received_splits > 0) {
    result.received_splits.assign(native.received_splits,
                                  native.received_splits + native.num_received_splits);
  }
  result.output.block.reset(hvdlite_result_take_block(engine, handle));
  result.output.size = static_cast<std::size_t>(native.num_bytes);
  return result;
}

void register_result(nb::module_& module) {
  nb::class_<OwnedBytes>(module, "_OwnedBytes", nb::type_slots(kBytesSlots), nb::is_final());
  nb::class_<Result>(module, "Result", nb::is_final(), "What an ended operation left behind.")
      .def_ro("contributors", &Result::contributors)
      .def_ro("last_joined_rank", &Result::last_joined_rank)
      .def_ro("process_set", &Result::process_set)
      .def_prop_ro("shape", [](const Result& self) { return as_tuple(self.shape); })
      .def_prop_ro("received_splits",
                   [](const Result& self) { return as_tuple(self.received_splits); })
      .def("take_data", &take_data,
           "The engine-allocated output as writable bytes that free themselves (numpy.frombuffer "
           "makes an array of it).");
}

}  // namespace hvdlite::python
