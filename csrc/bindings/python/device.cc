// Reports the GPU support that this process has.
#include "binding.h"

namespace hvdlite::python {

using namespace nb::literals;

namespace {

nb::tuple cuda_version(const Utf8& libraries) {
  std::int32_t version = 0;
  std::int32_t gpus = 0;
  // A driver needs time to start.
  check_without_gil([&] { return hvdlite_cuda_version(libraries.c_str(), &version, &gpus); });
  return nb::make_tuple(version, gpus);
}

int nccl_version(const Utf8& libraries) {
  std::int32_t version = 0;
  // NCCL needs time to load.
  check_without_gil([&] { return hvdlite_nccl_version(libraries.c_str(), &version); });
  return version;
}

}  // namespace

void register_device(nb::module_& module) {
  module.def("cuda_version", &cuda_version, "libraries"_a);
  module.def("nccl_version", &nccl_version, "libraries"_a);
}

}  // namespace hvdlite::python
