// What one rank's engine counts.
// Thread: any may read; who changes a number, its type says. Owns: the numbers. Blocks: no. Throws: nothing.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvdlite::engine {

// A number that the holder of the progress token alone changes, so that to add costs no locked instruction.
class Tally {
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

// What is counted; a Tally is the token holder's to change.
struct Counters {
  std::atomic<std::int64_t> submitted{0};
  Tally completed, failed;
  Tally control_messages_sent, control_bytes_sent;
  Tally fused_ops, cache_hits, cache_misses;
  Tally agreed_in_memory;
  Tally data_bytes_sent;
  Tally arena_ops;
  Tally riding_ops;
  Tally open_results;
  Tally nccl_ops, staged_ops;
  // How it waits. Who sleeps at the doorbell, or waits for another thread, does so without the token.
  Tally passes;
  std::atomic<std::int64_t> sleeps{0}, sleep_limits_us{0}, rung_sleeps{0}, unrung_finds{0};
};

}  // namespace hvdlite::engine
