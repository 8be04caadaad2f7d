// How the time of a stage is measured. A BusyTime keeps its state in one word, so that a reader needs this word and a clock,
// and no lock:
//
//    nothing under way       word = 2 * total                   the reader takes   total
//    something under way     word = 2 * (total - begin) + 1     the reader adds    (total - begin) + now
//
// Example in nanoseconds: the total is 30, and an operation begins at 100. The word is 2 * (30 - 100) + 1, and a reader at 120
// computes -70 + 120 = 50. At the end, at 150, the total becomes -70 + 150 = 80.
//
// The place of an entry (Completion::usage) decides which times count it:
//
//    the entry is       since                          negotiating   waiting   moving
//    kNegotiating       taken()                        yes
//    kWaiting           kAnnounced                     yes           yes
//    kAgreed            kAgreed
//    kMoving            kStarted                                               yes
//    kNowhere           before taken(); kDone, kFailed
//
// An entry may leave out stages, because each move subtracts the entry from the place where it was.
//
// Waiting time is charged to one rank when operations become agreed: came_last() charges all waiting time that no earlier call
// has charged. So no moment is charged twice, however many operations wait.
#include "engine/observe/usage.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace hvdlite::engine {

using base::OpKind;

namespace {

std::int64_t nanoseconds_in(base::Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

std::int64_t nanoseconds_in(base::Clock::time_point time) {
  return nanoseconds_in(time.time_since_epoch());
}

}  // namespace

// Only a change from nothing to something under way, or back, stores a word.
void BusyTime::change(std::int64_t more, Time now) {
  const bool turns = would_turn(more);
  count_ += more;
  if (!turns) return;
  const std::int64_t at = std::max(nanoseconds_in(now), ended_);
  const std::int64_t word = word_.load(std::memory_order_relaxed);
  if (count_ > 0) {
    word_.store(2 * (word / 2 - at) + 1, std::memory_order_relaxed);
  } else {
    ended_ = at;
    // total - begin may be negative. A shift rounds down, which removes the added 1; a division would round towards 0.
    word_.store(2 * ((word >> 1) + at), std::memory_order_relaxed);
  }
}

std::int64_t BusyTime::nanoseconds(std::int64_t word, Time now) {
  return (word & 1) == 0 ? word / 2 : (word >> 1) + nanoseconds_in(now);
}

Usage::Usage(int ranks, base::TimeSource time)
    : time_(time),
      ranks_(static_cast<std::size_t>(ranks)),
      late_(std::make_unique<LateTotals[]>(ranks_)) {}

void Usage::taken(std::span<const Entry> entries, Time since) {
  move(entries, kNegotiating, since);
}

void Usage::reached(std::span<const Entry> entries, Stage stage) {
  // In the order of Stage.
  static constexpr Where kWhere[] = {kNegotiating, kWaiting, kAgreed, kMoving, kNowhere, kNowhere};
  move(entries, kWhere[static_cast<std::size_t>(stage)], std::nullopt);
}

// First counts how many entries leave and enter each place, and then changes each BusyTime once. So a move from kNegotiating to
// kWaiting does not end the negotiating time, which counts the entries in both places. A time is needed only for a BusyTime
// that begins or ends. For moving data the clock is read anew, because a pass may copy data for a long time. For the other two
// BusyTimes, the time that now() knows is exact enough.
void Usage::move(std::span<const Entry> entries, Where to, std::optional<Time> since) {
  std::int64_t more[kPlaces] = {};
  for (const Entry& entry : entries) {
    if (!entry.request) continue;
    --more[std::exchange(entry.completion->usage, to)];
    ++more[to];
  }
  const std::int64_t moving = more[kMoving], waiting = more[kWaiting];
  const std::int64_t negotiating = more[kNegotiating] + waiting;
  moving_.change(moving, moving_.would_turn(moving) ? read_clock() : Time());
  const auto when = [&] { return since ? *since : now(); };
  negotiating_.change(negotiating, negotiating_.would_turn(negotiating) ? when() : Time());
  waiting_.change(waiting, waiting_.would_turn(waiting) ? now() : Time());
}

void Usage::came_last(int rank, std::size_t operations) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= ranks_) return;
  LateTotals& late = late_[static_cast<std::size_t>(rank)];
  late.operations += static_cast<std::int64_t>(operations);
  const std::int64_t waited = BusyTime::nanoseconds(waiting_.word(), now());
  late.nanoseconds += waited - std::exchange(charged_, waited);
}

void Usage::moves(OpKind kind, std::size_t bytes, std::size_t ranks) {
  // The connection of each rank has to carry at least bytes * factor / ranks bytes. A message counts at its sender only.
  std::size_t factor = 0;
  switch (kind) {
    case OpKind::kAllreduce:
      factor = 2 * (ranks - 1);
      break;
    case OpKind::kSend:
      factor = ranks;
      break;
    case OpKind::kRecv:
      break;
    case OpKind::kBroadcast:
      factor = ranks > 1 ? ranks : 0;
      break;
    case OpKind::kAllgather:
    case OpKind::kAlltoall:
    case OpKind::kReducescatter:
      factor = ranks - 1;
      break;
    default:
      return;
  }
  bytes_ += static_cast<std::int64_t>(bytes);
  // The product bytes * factor may overflow, so the code divides first.
  // With bytes = q * ranks + r the result is q * factor + r * factor / ranks.
  bus_bytes_ += static_cast<std::int64_t>(bytes / ranks * factor + bytes % ranks * factor / ranks);
}

// `to` may be earlier than this call. If data began to move between `to` and the call, moving(to) may be too small. If data
// stopped moving between `to` and the call, moving(to) may be too large. So the code bounds the counted time: it is at least 0
// and at most the whole wait.
void Usage::blocked(Time from, Time to, std::int64_t moving_before) {
  const std::int64_t all = nanoseconds_in(to - from);
  if (all <= 0) return;
  exposed_ns_.fetch_add(all, std::memory_order_relaxed);
  const std::int64_t meanwhile = std::min(moving(to) - moving_before, all);
  if (meanwhile > 0) exposed_moving_ns_.fetch_add(meanwhile, std::memory_order_relaxed);
}

Usage::Numbers Usage::numbers() const {
  Numbers numbers;
  // The words are read before the clock, so no busy time in them begins after `now`.
  const std::int64_t negotiating = negotiating_.word();
  const std::int64_t waiting = waiting_.word();
  const std::int64_t moving = moving_.word();
  const Time now = time_.now();
  numbers.time_ns = nanoseconds_in(now - made_);
  numbers.bytes = bytes_;
  numbers.bus_bytes = bus_bytes_;
  numbers.negotiating_ns = BusyTime::nanoseconds(negotiating, now);
  numbers.waiting_ns = BusyTime::nanoseconds(waiting, now);
  numbers.moving_ns = BusyTime::nanoseconds(moving, now);
  numbers.exposed_ns = exposed_ns_.load(std::memory_order_relaxed);
  numbers.exposed_moving_ns = exposed_moving_ns_.load(std::memory_order_relaxed);
  return numbers;
}

Usage::Lateness Usage::lateness() const {
  Lateness lateness;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    lateness.operations.push_back(late_[rank].operations);
    lateness.nanoseconds.push_back(late_[rank].nanoseconds);
  }
  return lateness;
}

}  // namespace hvdlite::engine
