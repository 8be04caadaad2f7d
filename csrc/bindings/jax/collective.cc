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

// A handler states a version of XLA's FFI. Up to jaxlib 0.8.1 it must equal XLA's own version, which is 0.1 in all these
// releases; they do not report it. Later releases report their version, and accept an older one. The parts that hvdlite uses
// exist since the first version.
constexpr int kUnreportedVersion = 1;
constexpr int kNewestKnownVersion = 3;

ffi::Error* error_of(const ffi::Api* api, const CallStatus& outcome) {
  if (!outcome.failed()) return nullptr;
  ffi::ErrorCreate create{sizeof(create), nullptr, outcome.text.c_str(),
                          status_code_of(outcome.code)};
  return api->create_error(&create);
}

CallStatus bug(const std::string& what) { return {HVDLITE_E_INTERNAL, "hvdlite error 9: " + what}; }

// Answers XLA's question for the version at registration. Returns whether it was that question.
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
  // Python's thread need not wait for a program of JAX, so a thread of XLA may submit what other ranks lack at any time.
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
  // Includes how the processor treats denormal numbers. XLA's program must continue with the same settings on all ranks.
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

// A program may have any number of these. They need futures, which jaxlib has since 0.4.38; older versions accept no future.
extern "C" HVDLITE_API hvdlite::jax::ffi::Error* hvdlite_jax_collective(
    hvdlite::jax::ffi::CallFrame* frame) noexcept {
  return hvdlite::jax::handle(frame, hvdlite::jax::WaitingThread::kSpawned);
}

// For the only collective of a program, and for versions without futures.
extern "C" HVDLITE_API hvdlite::jax::ffi::Error* hvdlite_jax_collective_alone(
    hvdlite::jax::ffi::CallFrame* frame) noexcept {
  return hvdlite::jax::handle(frame, hvdlite::jax::WaitingThread::kCaller);
}
