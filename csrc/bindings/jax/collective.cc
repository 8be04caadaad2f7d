// The XLA FFI handlers behind hvdlite.jax: groups of collectives inside a compiled program.
// Thread: XLA's, without Python's lock. Owns: each call its CollectiveCall. Blocks: hvdlite_jax_collective_alone;
// hvdlite_jax_collective only if no thread or no future can be made. Throws: nothing.

#include <algorithm>
#include <cfenv>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "ffi_abi.h"
#include "status_code.h"
#include "xla/call.h"

namespace hvdlite::jax {

namespace {

using xla::CallStatus;
using xla::CollectiveCall;

// A handler states for which version of XLA's FFI it was made. In jaxlib up to 0.8.1 the stated version must equal XLA's own
// version, which is always 0.1, and which XLA does not report. Later releases of jaxlib report XLA's version, and accept a
// handler that states an older one. The parts that hvdlite uses exist since the first version.
constexpr int kUnreportedVersion = 1;
constexpr int kNewestKnownVersion = 3;

ffi::Error* error_of(const ffi::Api* api, const CallStatus& outcome) {
  if (!outcome.failed()) return nullptr;
  ffi::ErrorCreate create{sizeof(create), nullptr, outcome.text.c_str(),
                          status_code_of(outcome.code)};
  return api->create_error(&create);
}

CallStatus bug(const std::string& what) { return {HVDLITE_E_INTERNAL, "hvdlite error 9: " + what}; }

// At registration XLA calls a handler to ask for its version. If this call is that question, answers it and returns true.
bool answered_metadata(const ffi::CallFrame* frame) {
  for (ffi::Extension* next = frame->extension; next != nullptr; next = next->next) {
    if (next->type != ffi::kMetadata) continue;
    ffi::Metadata* metadata = reinterpret_cast<ffi::MetadataExtension*>(next)->metadata;
    const ffi::Api* api = frame->api;
    metadata->api_version.major = 0;
    metadata->api_version.minor =
        api == nullptr ? kUnreportedVersion : std::min(api->version.minor, kNewestKnownVersion);
    return true;
  }
  return false;
}

std::string_view description_in(const ffi::Attributes& attributes) {
  for (std::int64_t i = 0; i < attributes.size; ++i) {
    const std::string_view name(attributes.names[i]->data, attributes.names[i]->size);
    if (attributes.types[i] != ffi::kString || name != "hvdlite") continue;
    const auto* text = static_cast<const ffi::ByteSpan*>(attributes.values[i]);
    return {text->data, text->size};
  }
  return {};
}

CallStatus submit(const ffi::CallFrame* frame, CollectiveCall& call) {
  if (CallStatus outcome = call.read(description_in(frame->attributes)); outcome.failed()) {
    return outcome;
  }
  const auto size = static_cast<std::int64_t>(call.size());
  if (frame->arguments.size != size + (call.is_weighted() ? 1 : 0) || frame->results.size != size) {
    return bug("a collective was compiled with another number of tensors");
  }
  if (call.is_weighted()) {
    const auto* weight = static_cast<const ffi::Buffer*>(frame->arguments.values[size]);
    if (weight->rank != 0 || (weight->dtype != ffi::kFloat32 && weight->dtype != ffi::kFloat64)) {
      return bug("a weight is one number of float32 or float64");
    }
    call.weigh(weight->dtype == ffi::kFloat32 ? *static_cast<const float*>(weight->data)
                                              : *static_cast<const double*>(weight->data));
  }
  for (std::int64_t i = 0; i < size; ++i) {
    const auto* input = static_cast<const ffi::Buffer*>(frame->arguments.values[i]);
    const auto* output = static_cast<const ffi::Buffer*>(frame->results.values[i]);
    const auto index = static_cast<std::size_t>(i);
    const std::span shape(input->dimensions, static_cast<std::size_t>(input->rank));
    if (!std::ranges::equal(shape, call.shape(index))) {
      return bug("a collective was compiled for another shape");
    }
    call.place(index, input->data, output->data);
  }
  // Python's thread need not wait until a program of JAX ends. So even while Python's thread waits for something else, a thread
  // of XLA may submit an operation for which other ranks wait, and deadlock detection must consider XLA's thread at any time.
  return call.submit(/*pool_thread=*/false);
}

// Reports a call's end to XLA, which continues the program on this thread.
void complete(const ffi::Api* api, ffi::Future* future, const CallStatus& outcome) {
  if (outcome.failed()) {
    ffi::FutureSetError set{sizeof(set), nullptr, future, error_of(api, outcome)};
    api->set_error(&set);
  } else {
    ffi::FutureSetAvailable set{sizeof(set), nullptr, future};
    api->set_available(&set);
  }
}

// XLA may run collectives that do not depend on each other in an order that changes from run to run. So no collective may block
// a thread of XLA: there are few such threads, and ranks whose threads block in different collectives would wait for ever.
ffi::Error* finish_elsewhere(ffi::CallFrame* frame, std::shared_ptr<CollectiveCall> call) {
  const ffi::Api* api = frame->api;
  ffi::FutureCreate create{sizeof(create), nullptr, nullptr};
  if (ffi::Error* error = api->create_future(&create)) {
    call->finish();
    return error;
  }
  frame->future = create.future;
  // The environment says, among other things, how the processor treats denormal numbers. XLA's program must continue with the
  // same settings on all ranks.
  std::fenv_t environment;
  std::fegetenv(&environment);
  const auto finish = [api, environment, future = create.future, call] {
    std::fesetenv(&environment);
    complete(api, future, call->finish());
  };
  try {
    std::thread(finish).detach();
  } catch (const std::exception&) {  // no more threads
    finish();
  }
  return nullptr;
}

enum class WaitingThread { kCaller, kSpawned };

ffi::Error* handle(ffi::CallFrame* frame, WaitingThread thread) {
  if (answered_metadata(frame) || frame->stage != ffi::kExecute) return nullptr;
  const auto call = std::make_shared<CollectiveCall>();
  if (const CallStatus outcome = submit(frame, *call); outcome.failed()) {
    return error_of(frame->api, outcome);
  }
  if (thread == WaitingThread::kCaller) return error_of(frame->api, call->finish());
  return finish_elsewhere(frame, call);
}

}  // namespace

}  // namespace hvdlite::jax

// For programs with any number of collectives. This handler needs futures; versions of jaxlib before 0.4.38 have none.
extern "C" HVDLITE_API hvdlite::jax::ffi::Error* hvdlite_jax_collective(
    hvdlite::jax::ffi::CallFrame* frame) noexcept {
  return hvdlite::jax::handle(frame, hvdlite::jax::WaitingThread::kSpawned);
}

// For the only collective of a program, and for versions of jaxlib without futures.
extern "C" HVDLITE_API hvdlite::jax::ffi::Error* hvdlite_jax_collective_alone(
    hvdlite::jax::ffi::CallFrame* frame) noexcept {
  return hvdlite::jax::handle(frame, hvdlite::jax::WaitingThread::kCaller);
}
