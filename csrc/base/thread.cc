#include "base/thread.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

namespace hvdlite::base {
namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

int futex_op(int op, FutexScope scope) {
  return scope == FutexScope::kProcess ? op | FUTEX_PRIVATE_FLAG : op;
}

}  // namespace

Clock::time_point coarse_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Clock::time_point(std::chrono::seconds(now.tv_sec) +
                           std::chrono::nanoseconds(now.tv_nsec));
}

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, microseconds limit,
                FutexScope scope) {
  if (limit.count() <= 0 || word.load(std::memory_order_acquire) != expected) return;
  timespec timeout;
  timeout.tv_sec = static_cast<time_t>(limit.count() / 1'000'000);
  timeout.tv_nsec = static_cast<long>(limit.count() % 1'000'000) * 1000;
  // All outcomes (woken, changed before sleeping, timeout, signal) mean the same to the caller: look again.
  syscall(SYS_futex, &word, futex_op(FUTEX_WAIT, scope), expected, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word, FutexScope scope) {
  syscall(SYS_futex, &word, futex_op(FUTEX_WAKE, scope), INT_MAX, nullptr, nullptr, 0);
}

int spin_pauses_in(microseconds time) {
  // The shortest round counts, because this thread may lose its processor during other rounds.
  constexpr int kRounds = 5;
  constexpr int kPauses = 64;
  auto quickest = Clock::duration::max();
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kPauses; ++i) spin_pause();
    quickest = std::min(quickest, Clock::now() - start);
  }
  const auto one = static_cast<double>(std::max<std::int64_t>(1, quickest.count())) / kPauses;
  const double pauses = static_cast<double>(time.count()) * 1000 / one;
  return static_cast<int>(std::min(pauses, static_cast<double>(INT_MAX)));
}

// A kernel for more processors than one CpuSet has (1024) refuses a single set. Linux supports at most 8192.
CpuSet allowed_cpus() {
  std::array<CpuSet, 8> sets{};
  if (sched_getaffinity(0, sizeof(sets), sets.data()) != 0) return {};
  return sets[0];
}

Error no_thread(const std::system_error& error) {
  return {ErrorCode::kSystem,
          "no thread can be started: " + error.code().message() +
              "; raise the limit to threads and memory (ulimit -u, ulimit -v, the container's)"};
}

void name_this_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

void sharpen_timers() { prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); }

}  // namespace hvdlite::base
