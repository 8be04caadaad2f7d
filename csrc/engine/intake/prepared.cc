// The last id that add() has returned is static, because a process may make several engines: one after the other, and in tests
// at the same time. With a count for each engine, a later engine would use the ids again. If a caller still had an id of an
// earlier engine, it would submit another group, and get no error.
//
// find() returns a shared pointer that owns the group. So a submission can read its group even if another thread releases the
// group meanwhile.
#include "engine/intake/prepared.h"

#include <atomic>

namespace hvdlite::engine {

std::int64_t PreparedGroups::add(PreparedGroupPtr group) {
  static std::atomic<std::int64_t> last{0};
  const std::int64_t id = ++last;
  const std::lock_guard lock(mutex_);
  groups_.emplace(id, std::move(group));
  return id;
}

PreparedGroupPtr PreparedGroups::find(std::int64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(id);
  if (found == groups_.end()) {
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      "prepared group " + std::to_string(id) +
                          " is unknown: it was released, or prepared before the last shutdown, "
                          "or never existed; prepare it again");
  }
  return found->second;
}

void PreparedGroups::release(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  groups_.erase(id);
}

}  // namespace hvdlite::engine
