#include "result.h"

#include <utility>

namespace hvdlite::python {

using namespace nb::literals;

namespace {

int export_bytes(PyObject* self, Py_buffer* view, int flags) noexcept {
  static char nothing;  // a buffer needs an address, even for zero bytes
  OwnedBytes* bytes = nb::inst_ptr<OwnedBytes>(self);
  void* data = bytes->size == 0 ? &nothing : hvdlite_block_data(bytes->block.get());
  return PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(bytes->size), 0, flags);
}

const PyType_Slot kBytesSlots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_bytes)},
                                   {0, nullptr}};

// Always returns the same object, so that an interrupted caller may ask again.
nb::object data_of(Result& result) {
  if (result.device >= 0) {
    throw nb::value_error("the data of this result is on a GPU; copy_to copies it to memory there");
  }
  if (!result.data.is_valid()) result.data = as_memoryview(std::move(result.output));
  return result.data;
}

void copy_to(const Result& result, std::uintptr_t pointer, std::uintptr_t stream) {
  if (result.device < 0) throw nb::value_error("the data of this result is not on a GPU");
  check(hvdlite_block_copy(result.output.block.get(), reinterpret_cast<void*>(pointer),
                           result.output.size, reinterpret_cast<void*>(stream)));
}

}  // namespace

nb::tuple as_tuple(const std::vector<std::int64_t>& values) {
  nb::list list;
  for (std::int64_t value : values) list.append(value);
  return nb::tuple(list);
}

nb::object as_memoryview(OwnedBytes bytes) {
  nb::object owner = nb::cast(std::move(bytes));
  return checked(PyMemoryView_FromObject(owner.ptr()));
}

Result take_result(hvdlite_engine* engine, std::int64_t work, std::size_t place,
                   const hvdlite_result& native) {
  Result result;
  result.contributors = native.contributors;
  result.last_joined_rank = native.last_joined_rank;
  result.process_set = native.process_set;
  result.source = native.source;
  result.tag = native.tag;
  if (native.ndim > 0) result.shape.assign(native.shape, native.shape + native.ndim);
  if (native.num_received_splits > 0) {
    result.received_splits.assign(native.received_splits,
                                  native.received_splits + native.num_received_splits);
  }
  result.output.block.reset(hvdlite_result_take_block(engine, work, place));
  result.output.size = static_cast<std::size_t>(native.num_bytes);
  result.device = native.device;
  return result;
}

void register_result(nb::module_& module) {
  nb::class_<OwnedBytes>(module, "_OwnedBytes", nb::type_slots(kBytesSlots), nb::is_final());
  nb::class_<GpuMemory>(module, "GpuMemory", nb::is_final())
      .def_prop_ro("address",
                   [](const GpuMemory& self) {
                     return reinterpret_cast<std::uintptr_t>(hvdlite_block_data(self.block.get()));
                   })
      .def_prop_ro("device",
                   [](const GpuMemory& self) { return hvdlite_block_device(self.block.get()); })
      .def_ro("nbytes", &GpuMemory::size);
  nb::class_<Result>(module, "Result", nb::is_final())
      .def_ro("contributors", &Result::contributors)
      .def_ro("last_joined_rank", &Result::last_joined_rank)
      .def_ro("process_set", &Result::process_set)
      .def_ro("source", &Result::source)
      .def_ro("tag", &Result::tag)
      .def_prop_ro("shape", [](const Result& self) { return as_tuple(self.shape); })
      .def_prop_ro("received_splits",
                   [](const Result& self) { return as_tuple(self.received_splits); })
      .def_ro("device", &Result::device)
      .def_prop_ro("data", &data_of)
      .def("copy_to", &copy_to, "pointer"_a, "stream"_a);
}

}  // namespace hvdlite::python
