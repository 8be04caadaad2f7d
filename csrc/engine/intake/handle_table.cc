#include "engine/intake/handle_table.h"

namespace hvdlite::engine {
namespace {

constexpr int kSlotBits = 24;
constexpr std::int64_t kMaxSlots = std::int64_t{1} << kSlotBits;

}  // namespace

std::int64_t HandleTable::add(CompletionArray batch) {
  const std::lock_guard lock(mutex_);
  if (first_free_ == slots_.size()) {
    if (static_cast<std::int64_t>(slots_.size()) + 1 >= kMaxSlots) {
      throw base::Error(
          base::ErrorCode::kSystem,
          std::to_string(slots_.size()) +
              " operations are neither waited for nor released; wait for some of them");
    }
    slots_.emplace_back();
    slots_.back().next_free = first_free_ + 1;
  }
  const std::uint32_t number = first_free_;
  Row& slot = slots_[number];
  first_free_ = slot.next_free;
  slot.batch = std::move(batch);
  return slot.generation * kMaxSlots + number + 1;
}

const HandleTable::Row* HandleTable::slot_of(std::int64_t handle) const {
  const std::int64_t number = handle % kMaxSlots - 1;
  if (handle <= 0 || number < 0 || number >= static_cast<std::int64_t>(slots_.size())) {
    return nullptr;
  }
  const Row& slot = slots_[static_cast<std::size_t>(number)];
  return slot.batch.size > 0 && slot.generation == handle / kMaxSlots ? &slot : nullptr;
}

CompletionArray HandleTable::find(std::int64_t handle) const {
  const std::lock_guard lock(mutex_);
  const Row* slot = slot_of(handle);
  if (slot == nullptr) {
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      "handle " + std::to_string(handle) +
                          " is unknown: it was already synchronized or never existed");
  }
  return slot->batch;
}

void HandleTable::release(std::int64_t handle) {
  CompletionArray last;  // destroyed after the lock is gone
  const std::lock_guard lock(mutex_);
  const Row* found = slot_of(handle);
  if (found == nullptr) return;
  Row& slot = slots_[static_cast<std::size_t>(found - slots_.data())];
  last = std::exchange(slot.batch, {});
  ++slot.generation;
  slot.next_free = first_free_;
  first_free_ = static_cast<std::uint32_t>(found - slots_.data());
}

}  // namespace hvdlite::engine
