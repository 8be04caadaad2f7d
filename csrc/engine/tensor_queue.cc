#include "engine/tensor_queue.h"

namespace hvdlite::engine {

bool TensorQueue::push(std::vector<Entry> entries) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Request& request = *entries[i].request;
    if (in_flight_.emplace(request.set, request.name).second) continue;
    for (std::size_t j = 0; j < i; ++j) {
      in_flight_.erase({entries[j].request->set, entries[j].request->name});
    }
    throw base::Error(
        base::ErrorCode::kInvalidArgument,
        describe(request) +
            ": an operation of this name is still in flight on this rank; wait for it "
            "(synchronize) or give the tensors different names");
  }
  const bool was_empty = entries_.empty();
  if (was_empty) oldest_ = base::Clock::now();
  for (Entry& entry : entries) {
    bytes_ += entry.request->bytes();
    entries_.push_back(std::move(entry));
  }
  return was_empty;
}

std::vector<Entry> TensorQueue::take(bool flush, std::size_t enough_bytes,
                                     base::microseconds patience) {
  const std::lock_guard lock(mutex_);
  if (entries_.empty()) return {};
  if (!flush && bytes_ < enough_bytes && base::Clock::now() - oldest_ < patience) return {};
  bytes_ = 0;
  return std::exchange(entries_, {});
}

std::optional<base::Clock::time_point> TensorQueue::due(base::microseconds patience) const {
  const std::lock_guard lock(mutex_);
  if (entries_.empty()) return std::nullopt;
  return oldest_ + patience;
}

void TensorQueue::forget(const Request& request) {
  const std::lock_guard lock(mutex_);
  in_flight_.erase({request.set, request.name});
}

}  // namespace hvdlite::engine
