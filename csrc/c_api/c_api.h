// The common part of the files behind hvdlite.h. guarded() turns every exception into a code, so none leaves the C ABI.
// Thread: any. Owns: an hvdlite_engine its Engine, a block its memory. Blocks: as the guarded work does. Throws: as each
// function says.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "engine/engine.h"
#include "hvdlite/hvdlite.h"

struct hvdlite_engine {
  std::unique_ptr<hvdlite::engine::Engine> engine;
  std::atomic<int> references{1};
};

// Memory for a result, on the host or on a GPU.
struct hvdlite_block {
  hvdlite::engine::OutputCache::Block memory;
  hvdlite::device::Buffer gpu_memory = {};
  hvdlite::device::GpuPtr gpu = nullptr;      // the GPU of the memory
  hvdlite::device::EventPtr event = nullptr;  // after this event it may be read; null: at once
  bool lent = false;  // a caller uses it in streams that the engine does not know
};

namespace hvdlite::engine {

// Throws Error(InvalidArgument) unless the condition holds.
inline void require(bool condition, std::string_view text) {
  if (!condition) throw base::Error(base::ErrorCode::kInvalidArgument, std::string(text));
}

// The Engine of an hvdlite_engine. Throws Error(InvalidArgument) for null, but not for an engine that has shut down.
inline Engine& alive(hvdlite_engine* handle) {
  require(handle != nullptr && handle->engine, "no engine");
  return *handle->engine;
}

// The view borrows the name, texts and lists of `from`. Throws Error(InvalidArgument) for unknown codes.
RequestView view_of(const hvdlite_request& from);

// The code of the exception that is being handled. Keeps its text for the caller.
int outcome_of_exception() noexcept;

// Runs work() and returns HVDLITE_OK. If it throws, returns the error's code and keeps the text for the caller.
template <typename Work>
int guarded(Work&& work) noexcept {
  try {
    std::forward<Work>(work)();
    return HVDLITE_OK;
  } catch (...) {
    return outcome_of_exception();
  }
}

}  // namespace hvdlite::engine
