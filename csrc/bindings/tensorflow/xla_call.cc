// Collectives under jit_compile=True: custom calls in the registry of TensorFlow's XLA. This file assumes three things of XLA's
// C++ interface: the names of two functions, and that a status is an optional text. hvdlite/tensorflow/xla.py tests them before
// their first use.
// Thread: XLA's; registration happens once. Owns: nothing. Blocks: the custom calls. Throws: nothing.
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "loaded_library.h"
#include "xla/call.h"

namespace hvdlite::tensorflow {
namespace {

constexpr const char* kXlaLibrary = "libtensorflow_cc.so.2";
constexpr const char* kPlatform = "Host";
constexpr const char* kGlobal = "_ZN3xla24CustomCallTargetRegistry6GlobalEv";
constexpr const char* kRegister =
    "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_"
    "traitsIcESaIcEEEPvS8_";

using XlaStatus = std::optional<std::string>;
using CustomCall = void(void** outputs, const void** inputs, const char* config, std::size_t size,
                        XlaStatus* status);

// The calls of an XLA program pass a number from one to the next, so that XLA runs them in the order in which they were traced.
// That order is the same on all ranks, so no rank waits for another rank's later call.
void hand_on(const void* input, void* output) { std::memcpy(output, input, sizeof(std::int32_t)); }

void collective(void** outputs, const void** inputs, const char* config, std::size_t size,
                XlaStatus* status) {
  xla::CollectiveCall call;
  xla::CallStatus outcome = call.read({config, size});
  const std::size_t last = call.size() + (call.is_weighted() ? 1 : 0);
  if (!outcome.failed()) {
    if (call.is_weighted()) call.weigh(*static_cast<const double*>(inputs[call.size()]));
    for (std::size_t i = 0; i < call.size(); ++i) call.place(i, inputs[i], outputs[i]);
    // TensorFlow runs a compiled XLA program in any thread of its pool, while a thread of the user's program waits for the end.
    outcome = call.submit(/*pool_thread=*/true);
  }
  if (!outcome.failed()) outcome = call.finish();
  if (outcome.failed()) {
    *status = outcome.text;
    return;
  }
  hand_on(inputs[last], outputs[call.size()]);
}

// If its configuration is empty, swaps two numbers. Otherwise fails, with the configuration as the text.
void self_test(void** outputs, const void** inputs, const char* config, std::size_t size,
               XlaStatus* status) {
  if (size > 0) {
    *status = std::string(config, size);
    return;
  }
  hand_on(inputs[0], outputs[1]);
  hand_on(inputs[1], outputs[0]);
}

bool register_calls() {
  const LoadedLibrary library(kXlaLibrary);
  const auto global = library.find<void* (*)()>(kGlobal);
  const auto add =
      library.find<void (*)(void*, const std::string&, void*, const std::string&)>(kRegister);
  if (global == nullptr || add == nullptr) return false;
  const auto add_call = [&](const char* name, CustomCall* function) {
    add(global(), name, reinterpret_cast<void*>(function), kPlatform);
  };
  add_call("hvdlite_collective", collective);
  add_call("hvdlite_self_test", self_test);
  return true;
}

}  // namespace
}  // namespace hvdlite::tensorflow

// Registers the custom calls with XLA. Returns 0 if this TensorFlow does not allow it. Call it once.
extern "C" HVDLITE_API int hvdlite_tensorflow_register_xla(void) {
  return hvdlite::tensorflow::register_calls() ? 1 : 0;
}
