// The free rows form a list: first_free_ is the number of the first one, and next_free of each free row is the number of the
// next one. In the last free row, next_free is rows_.size(). An example (g: generation):
//
//    add()        row 0, g 0    handle 1                          the list is empty, so the table grows by a row
//    add()        row 1, g 0    handle 2
//    release(1)   row 0, g 1    the list: row 0
//    find(1)      throws        handle 1 has g 0, but row 0 has g 1
//    add()        row 0, g 1    handle 2^24 + 1
//
// The table never becomes smaller. Of the free rows, the one that was released last is used first.
#include "engine/intake/handle_table.h"

namespace hvdlite::engine {
namespace {

constexpr int kRowBits = 24;
constexpr std::int64_t kMaxRows = std::int64_t{1} << kRowBits;

}  // namespace

std::int64_t HandleTable::add(CompletionArray batch) {
  const std::lock_guard lock(mutex_);
  if (first_free_ == rows_.size()) {
    // The new row's number + 1 must fit below the bits of the generation.
    if (static_cast<std::int64_t>(rows_.size()) + 1 >= kMaxRows) {
      throw base::Error(base::ErrorCode::kSystem,
                        std::to_string(rows_.size()) +
                            " submissions have handles that were not released; synchronize or "
                            "drop some of them");
    }
    rows_.emplace_back();
    rows_.back().next_free = first_free_ + 1;
  }
  const std::uint32_t number = first_free_;
  Row& row = rows_[number];
  first_free_ = row.next_free;
  row.batch = std::move(batch);
  return row.generation * kMaxRows + number + 1;
}

const HandleTable::Row* HandleTable::row_of(std::int64_t handle) const {
  const std::int64_t number = handle % kMaxRows - 1;
  if (handle <= 0 || number < 0 || number >= static_cast<std::int64_t>(rows_.size())) {
    return nullptr;
  }
  const Row& row = rows_[static_cast<std::size_t>(number)];
  return row.batch.size > 0 && row.generation == handle / kMaxRows ? &row : nullptr;
}

CompletionArray HandleTable::find(std::int64_t handle) const {
  const std::lock_guard lock(mutex_);
  const Row* row = row_of(handle);
  if (row == nullptr) {
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      "handle " + std::to_string(handle) +
                          " is unknown: it was released already, or never existed");
  }
  return row->batch;
}

void HandleTable::release(std::int64_t handle) {
  CompletionArray last;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  const Row* found = row_of(handle);
  if (found == nullptr) return;
  Row& row = rows_[static_cast<std::size_t>(found - rows_.data())];
  last = std::exchange(row.batch, {});
  ++row.generation;
  row.next_free = first_free_;
  first_free_ = static_cast<std::uint32_t>(found - rows_.data());
}

}  // namespace hvdlite::engine
