// The counters of one rank's engine, and the cost of its operations: bytes, the time in each stage, the time that callers were
// blocked, and the ranks for which this rank waited.
// Thread: any may read the numbers; each type or function says who changes them. Owns: the numbers. Blocks: no. Throws: the
// constructor and lateness() throw std::bad_alloc.
//
// A stage's time is the time during which at least one operation was in it; operations that overlap count once. For this a pass
// reads the clock once, and a second time if the pass made progress and operations are in flight. It also reads the clock each
// time that data start or stop moving. For the time that a caller was blocked, a blocking call uses readings of the clock that
// it also needs for other purposes. Only a call that times out reads the clock once more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/time_source.h"
#include "base/types.h"
#include "engine/model/entry.h"
#include "engine/observe/flight_recorder.h"

namespace hvdlite::engine {

// A number that only the holder of the progress token (the thread that drives the engine, engine.h) changes, so that an
// addition needs no locked instruction.
class SingleWriterCounter {
 public:
  void operator+=(std::int64_t more) {
    value_.store(value_.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  void operator++() { *this += 1; }
  void store(std::int64_t value) { value_.store(value, std::memory_order_relaxed); }
  operator std::int64_t() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

// The counters that have the same names in include/hvdlite/counters.inc. A thread that submits changes `submitted`.
struct Counters {
  std::atomic<std::int64_t> submitted{0};
  SingleWriterCounter completed, failed;
  SingleWriterCounter control_messages_sent, control_bytes_sent;
  SingleWriterCounter fused_ops, cache_hits, cache_misses;
  SingleWriterCounter agreed_in_memory;
  SingleWriterCounter data_bytes_sent;
  SingleWriterCounter arena_ops;
  SingleWriterCounter riding_ops;
  SingleWriterCounter open_results;
  SingleWriterCounter nccl_ops, staged_ops;
  SingleWriterCounter notices;
  SingleWriterCounter coded_bytes_before, coded_bytes_after;
  // How this rank waits. The last four are atomics, because a thread may sleep, and count its sleep, without the progress
  // token.
  SingleWriterCounter passes;
  std::atomic<std::int64_t> sleeps{0}, sleep_limits_us{0}, rung_sleeps{0}, unrung_finds{0};
};

// The time during which at least one operation was under way.
class BusyTime {
 public:
  using Time = base::Clock::time_point;

  // Adds `more`, which may be negative, to the number of operations that are under way from `now` on. `now` matters only if
  // would_turn(more). change() and would_turn() are for the holder of the progress token.
  void change(std::int64_t more, Time now);
  // Would change(more) begin or end a busy time?
  bool would_turn(std::int64_t more) const { return (count_ > 0) != (count_ + more > 0); }
  // The state as one word. nanoseconds() computes the busy time from this word and a later reading of the clock. For any
  // thread.
  std::int64_t word() const { return word_.load(std::memory_order_relaxed); }
  static std::int64_t nanoseconds(std::int64_t word, Time now);

 private:
  std::int64_t count_ = 0;
  // When the last busy time ended. If the caller begins the next busy time with an earlier `now`, that busy time counts only
  // from ended_ on.
  std::int64_t ended_ = 0;
  // One word, so that a reader needs no lock. total: the sum of the busy times that have ended; begin: when the present busy
  // time began. If nothing is under way, the word is twice the total; if something is, the word is twice (total - begin), plus
  // 1.
  std::atomic<std::int64_t> word_{0};
};

class Usage {
 public:
  using Time = base::Clock::time_point;
  using Stage = FlightRecorder::Stage;

  Usage(int ranks, base::TimeSource time);

  // --- for the holder of the progress token ---
  // now() returns the last reading of the clock since forget_now(). If there is no such reading, now() reads the clock.
  // read_clock() always reads it.
  Time now() { return now_ ? *now_ : read_clock(); }
  Time read_clock() { return *(now_ = time_.now()); }
  void forget_now() { now_.reset(); }
  // The cycle has taken these entries from the queue. The first of them was pushed at `since`.
  void taken(std::span<const Entry> entries, Time since);
  // These entries reach a stage together. An entry without a request belongs to no caller of this rank, and does not count.
  void reached(std::span<const Entry> entries, Stage stage);
  // This many operations are now agreed. Of all requests for these operations, the last one came from rank `rank`. The waiting
  // time since the last call of came_last() is charged to that rank. Does nothing if `rank` is no rank of the job.
  void came_last(int rank, std::size_t operations);
  // Counts the bytes of an operation: a FusedOp among `ranks` ranks, or a send or receive (ranks: 1). A collective with ranks 1
  // adds no bus bytes. docs/stats.md says what `bytes` are.
  void moves(base::OpKind kind, std::size_t bytes, std::size_t ranks);

  // --- for any thread ---
  // A caller was blocked between these times. moving_before: moving() at `from`.
  void blocked(Time from, Time to, std::int64_t moving_before);
  // For how many nanoseconds data have moved until `now`.
  std::int64_t moving(Time now) const { return BusyTime::nanoseconds(moving_.word(), now); }

  // docs/stats.md defines these numbers. The last two are what blocked() has counted.
  struct Numbers {
    std::int64_t time_ns = 0;  // since this object was made
    std::int64_t bytes = 0, bus_bytes = 0;
    std::int64_t negotiating_ns = 0, waiting_ns = 0, moving_ns = 0;
    std::int64_t exposed_ns = 0, exposed_moving_ns = 0;
  };
  Numbers numbers() const;
  // For each rank: the number of operations for which that rank asked last, and the nanoseconds charged to that rank.
  struct Lateness {
    std::vector<std::int64_t> operations, nanoseconds;
  };
  Lateness lateness() const;

 private:
  // The state of an entry, in Completion::usage.
  enum Where : std::uint8_t { kNowhere, kNegotiating, kWaiting, kAgreed, kMoving };
  static constexpr std::size_t kPlaces = 5;
  struct LateTotals {
    SingleWriterCounter operations, nanoseconds;
  };

  void move(std::span<const Entry> entries, Where to, std::optional<Time> since);

  const base::TimeSource time_;
  const Time made_ = time_.now();
  const std::size_t ranks_;
  const std::unique_ptr<LateTotals[]> late_;
  std::optional<Time> now_;
  std::int64_t charged_ = 0;  // the part of the waiting time that is charged already
  BusyTime negotiating_, waiting_, moving_;
  SingleWriterCounter bytes_, bus_bytes_;
  std::atomic<std::int64_t> exposed_ns_{0}, exposed_moving_ns_{0};
};

}  // namespace hvdlite::engine
