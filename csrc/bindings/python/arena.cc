#include "arena.h"

#include <array>
#include <string>

namespace hvdlite::python {

using namespace nb::literals;

namespace {

int export_memory(PyObject* self, Py_buffer* view, int flags) noexcept {
  const Arena* arena = nb::inst_ptr<Arena>(self);
  return PyBuffer_FillInfo(view, self, arena->data(), static_cast<Py_ssize_t>(arena->nbytes()), 0,
                           flags);
}

const PyType_Slot kMemorySlots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_memory)},
                                    {0, nullptr}};

}  // namespace

nb::bytes Arena::address() const {
  std::array<char, HVDLITE_ARENA_ADDRESS_BYTES> address{};
  hvdlite_arena_address(arena_, address.data());
  return nb::bytes(address.data(), address.size());
}

void Arena::open(nb::sequence addresses) {
  std::string joined;
  std::int32_t count = 0;
  for (nb::handle item : addresses) {
    const auto address = nb::cast<nb::bytes>(item);
    if (address.size() != HVDLITE_ARENA_ADDRESS_BYTES) {
      throw nb::value_error("these bytes are not the address of a part of an arena");
    }
    joined.append(address.c_str(), address.size());
    ++count;
  }
  check(hvdlite_arena_open(arena_, joined.data(), count));
}

void register_arena(nb::module_& module) {
  nb::class_<Arena>(module, "Arena", nb::type_slots(kMemorySlots), nb::is_final())
      .def_prop_ro("address", &Arena::address)
      .def_prop_ro("id", &Arena::id)
      .def_prop_ro("nbytes", &Arena::nbytes)
      .def("open", &Arena::open, "addresses"_a)
      .def("hide", &Arena::hide)
      .def("close", &Arena::close);
  module.def(
      "stream_copy",
      [](std::uintptr_t to, std::uintptr_t source, std::int64_t nbytes) {
        hvdlite_stream_copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(source),
                            nbytes);
      },
      "to"_a, "source"_a, "nbytes"_a, nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "digest",
      [](std::uintptr_t address, std::int64_t nbytes) {
        return hvdlite_digest(reinterpret_cast<const void*>(address), nbytes);
      },
      "address"_a, "nbytes"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace hvdlite::python
