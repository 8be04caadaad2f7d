// Registers the ops when TensorFlow loads this library, and answers Python's questions afterwards
// (hvdlite/tensorflow/library.py).
#include "gpu_stream.h"
#include "hvdlite/hvdlite.h"
#include "op_definition.h"
#include "ops.h"
#include "status.h"

namespace hvdlite::tensorflow {
namespace {

// tf.load_op_library collects the ops that the library's constructors register.
[[gnu::constructor]] void register_ops() {
  if (!api().problem.empty()) return;
  register_collectives();
  register_outcome();
  register_values();
  register_self_tests();
}

}  // namespace
}  // namespace hvdlite::tensorflow

using hvdlite::tensorflow::api;

// Why there are no ops; empty if there are.
extern "C" HVDLITE_API const char* hvdlite_tensorflow_problem(void) {
  return api().problem.c_str();
}

// Can this TensorFlow end kernels later than their compute?
extern "C" HVDLITE_API int hvdlite_tensorflow_has_async_kernels(void) {
  return api().has_async_kernels() ? 1 : 0;
}

// Can the ops find the stream in which this TensorFlow's GPU kernels work?
extern "C" HVDLITE_API int hvdlite_tensorflow_has_gpu_streams(void) {
  return hvdlite::tensorflow::has_gpu_streams() ? 1 : 0;
}

// Registers the kernels for GPUs, once: for tensors in GPU memory, or for tensors in host memory.
extern "C" HVDLITE_API void hvdlite_tensorflow_enroll_gpu_kernels(int gpu_memory) {
  hvdlite::tensorflow::enroll_gpu_kernels(gpu_memory != 0);
}

// The canonical code that ops fail with for an HVDLITE_E_* code.
extern "C" HVDLITE_API int hvdlite_tensorflow_status_of(int code) {
  return hvdlite::status_code_of(code);
}
