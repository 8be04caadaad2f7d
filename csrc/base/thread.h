// Clock, futex and processor affinity. The C++ library does not have them in the form that hvdlite needs.
// Thread: any. Owns: nothing. Blocks: futex_wait only. Throws: nothing.
//
// std::atomic::wait works only within a process. The ranks' bells (transport/bell.h) lie in shared memory, so they need a futex
// that is not private to a process.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <system_error>

#include "base/error.h"

namespace hvdlite::base {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// The time of Clock with an error of a few milliseconds. A call takes a quarter of the time of Clock::now().
Clock::time_point coarse_now();

enum class FutexScope { kProcess, kHost };

// Sleeps while `word` has the value `expected`, for at most `limit`. It may return earlier without a reason, so the caller
// looks again.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, microseconds limit,
                FutexScope scope);
void futex_wake_all(std::atomic<std::uint32_t>& word, FutexScope scope);

// Tells a spinning processor that it spins.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How a rank waits for other ranks. The choice depends on the number of processors for the host's ranks (transport/mpi_env.h).
struct WaitPolicy {
  microseconds spin{0};  // a waiting caller first polls without a pause for this time;
  microseconds yield{
      0};  // then lets others have its processor between two looks, and then it sleeps
  // Has the host two or more processors for each of its ranks? Then the engine's thread may poll as well.
  bool core_to_spare = false;
};
// How often spin_pause() fits into this time, as measured now; at most INT_MAX.
int spin_pauses_in(microseconds time);

// The processors on which this thread may run, of the first 1024 of the machine. Empty if the kernel does not tell.
using CpuSet = cpu_set_t;
CpuSet allowed_cpus();

// Makes an Error from the exception that std::thread throws if no thread can be started. Its text names the remedy.
Error no_thread(const std::system_error& error);
void name_this_thread(const char* name);  // at most 15 characters
// From now on this thread wakes from timed sleeps within a microsecond instead of the default 50.
void sharpen_timers();

// A time that can be added to Clock::now() and subtracted from it: at most about 95 years.
inline microseconds from_seconds(double seconds) {
  constexpr double kMost = 3e9;
  const double limited = seconds < kMost ? seconds : kMost;
  return microseconds(static_cast<std::int64_t>((limited > -kMost ? limited : -kMost) * 1e6));
}

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace hvdlite::base
