// What the files behind hvdlite.h share: no exception leaves the C ABI.
// Thread: any. Owns: nothing. Blocks: what the guarded work blocks. Throws: never.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <new>
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

// Memory for a result: of the host, or of a GPU.
struct hvdlite_block {
  hvdlite::engine::OutputCache::Block memory;
  hvdlite::device::Buffer gpu_memory = {};
  hvdlite::device::GpuPtr gpu = nullptr;      // whose it is
  hvdlite::device::EventPtr event = nullptr;  // after which it may be read; null: at once
  bool lent = false;                          // used by a caller in streams that nobody knows
};

namespace hvdlite::engine {

// Memory on a GPU that was lent to a caller is about to be freed.
void take_back(hvdlite_block& block) noexcept;

// The text that hvdlite_last_error() gives on this thread.
void set_last_error(const std::string& text);

// The caller's fault unless the condition holds.
inline void require(bool condition, std::string_view text) {
  if (!condition) throw base::Error(base::ErrorCode::kInvalidArgument, std::string(text));
}

inline Engine& alive(hvdlite_engine* handle) {
  require(handle != nullptr && handle->engine, "no engine");
  return *handle->engine;
}

// Of the name, texts and lists of `from`, which it borrows. Error(InvalidArgument) for codes that stand for nothing.
RequestView view_of(const hvdlite_request& from);

// Runs work() and returns HVDLITE_OK, or the code of what it threw with the text kept for the
// caller.
template <typename Work>
int guarded(Work&& work) noexcept {
  try {
    std::forward<Work>(work)();
    return HVDLITE_OK;
  } catch (const base::Error& error) {
    set_last_error(error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return HVDLITE_E_SYSTEM;
  } catch (const std::exception& error) {
    set_last_error(std::string("unexpected: ") + error.what());
    return HVDLITE_E_INTERNAL;
  }
}

}  // namespace hvdlite::engine
