#include "engine/handle_table.h"

namespace hvdlite::engine {

std::int64_t HandleTable::add(CompletionPtr completion) {
  const std::lock_guard lock(mutex_);
  const std::int64_t handle = next_++;
  completions_.emplace(handle, std::move(completion));
  return handle;
}

CompletionPtr HandleTable::find(std::int64_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = completions_.find(handle);
  if (found == completions_.end()) {
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      "handle " + std::to_string(handle) +
                          " is unknown: it was already synchronized or never existed");
  }
  return found->second;
}

void HandleTable::release(std::int64_t handle) {
  CompletionPtr last;  // destroyed after the lock is gone
  const std::lock_guard lock(mutex_);
  const auto found = completions_.find(handle);
  if (found == completions_.end()) return;
  last = std::move(found->second);
  completions_.erase(found);
}

}  // namespace hvdlite::engine
