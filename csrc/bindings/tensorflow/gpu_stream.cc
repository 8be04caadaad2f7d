#include "gpu_stream.h"

#include "hvdlite/hvdlite.h"
#include "loaded_library.h"
#include "plausible.h"

namespace hvdlite::tensorflow {
namespace {

constexpr const char* kEigenDevice =
    "_ZNK10tensorflow15OpKernelContext12eigen_deviceIN5Eigen9GpuDeviceEEERKT_v";
constexpr int kStreamFunction = 2;  // in the table of virtual functions

struct StreamInterface;
using EigenDevice = const void* (*)(const TF_OpKernelContext*);  // returns a GpuDevice
using GetStream = void* const* (*)(const StreamInterface*);

EigenDevice& eigen_device() {
  static EigenDevice function = LoadedLibrary(kLibrary).find<EigenDevice>(kEigenDevice);
  return function;
}

}  // namespace

bool has_gpu_streams() { return eigen_device() != nullptr; }

void* checked_gpu_stream_of(TF_OpKernelContext* context) {
  const void* interface = nullptr;
  const void* functions = nullptr;
  const void* function = nullptr;
  const void* stream = nullptr;
  if (!read_pointer(eigen_device()(context), &interface) || !read_pointer(interface, &functions) ||
      !read_pointer(static_cast<const void* const*>(functions) + kStreamFunction, &function) ||
      !is_code(function)) {
    return nullptr;
  }
  const auto get = reinterpret_cast<GetStream>(const_cast<void*>(function));
  const void* place = get(static_cast<const StreamInterface*>(interface));
  return read_pointer(place, &stream) ? const_cast<void*>(stream) : nullptr;
}

void* gpu_stream_of(TF_OpKernelContext* context) {
  const auto* interface = *static_cast<const StreamInterface* const*>(eigen_device()(context));
  const auto* functions = *reinterpret_cast<const GetStream* const*>(interface);
  return *functions[kStreamFunction](interface);
}

}  // namespace hvdlite::tensorflow

// For tests: replaces TensorFlow's function, in builds of TensorFlow without GPUs. Call it before any op runs.
extern "C" HVDLITE_API void hvdlite_tensorflow_set_eigen_device(void* function) {
  hvdlite::tensorflow::eigen_device() =
      reinterpret_cast<hvdlite::tensorflow::EigenDevice>(function);
}
