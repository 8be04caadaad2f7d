#include "engine/pacing.h"

#include <algorithm>
#include <cstdint>

namespace hvdlite::engine {

using base::microseconds;

namespace {

constexpr microseconds kSleepIdle{250'000};
constexpr microseconds kSleepIdleNoBell{50'000};
constexpr microseconds kSleepNegotiating{10'000};
constexpr microseconds kSleepNegotiatingNoBell{200};
constexpr microseconds kSleepPatientNoBell{5'000};
constexpr microseconds kSleepMovingData{200};
// How often to look for NCCL's errors while the GPU works.
constexpr microseconds kSleepGpu{2'000};
constexpr microseconds kFirstSleep{20};
// If a rank that no bell wakes has waited long, another rank is slow. The pause between two looks may then be this share of the
// time waited, because so short a pause hardly delays the rank. A rank without work takes the same share: no operation waits
// for that rank, and a caller that submits rings its own engine's bell.
constexpr double kIdleShare = 0.04;
// The rank that holds the lock may be stopped for a long time, and each try costs some ten microseconds. So the first try comes
// after this time, and each later pause is a share of the time in which nothing has happened.
constexpr microseconds kTryAgain{20};
constexpr microseconds kTryAgainLater{10'000};
constexpr int kLooksPerWait = 8;
// Gradients of one step follow each other faster than this part of a cycle.
constexpr int kPausesInCycle = 8;

}  // namespace

microseconds longest_sleep(const Outlook& outlook, bool bells_reach_all) {
  // Exponential back-off: sleep as long as this wait has lasted so far, within the limits.
  const auto grown = std::max(kFirstSleep, outlook.idle);
  const auto patient = microseconds(
      static_cast<std::int64_t>(static_cast<double>(outlook.idle.count()) * kIdleShare));
  microseconds limit =
      bells_reach_all ? kSleepIdle : std::clamp(patient, kSleepPatientNoBell, kSleepIdleNoBell);
  if (outlook.negotiating || outlook.watching) {
    limit = bells_reach_all ? kSleepNegotiating
                            : std::clamp(patient, kSleepNegotiatingNoBell, kSleepPatientNoBell);
  }
  if (outlook.gpu_at_work) limit = std::min(limit, kSleepGpu);
  // A message under way may need progress on both sides, and no bell rings for that.
  if (outlook.moving_data) limit = kSleepMovingData;
  if (outlook.moving_data || !bells_reach_all) limit = std::min(limit, grown);
  if (outlook.due.count() > 0) limit = std::min(limit, outlook.due);
  return limit;
}

microseconds pause_before_trying_again(microseconds idle) {
  return std::clamp(idle / kLooksPerWait, kTryAgain, kTryAgainLater);
}

Patience patience_of(double cycle_time_ms, int ranks) {
  const microseconds cycle = base::from_seconds(cycle_time_ms / 1000);
  const microseconds nothing{0};
  return {.since_first = cycle, .since_last = ranks > 1 ? cycle / kPausesInCycle : nothing};
}

}  // namespace hvdlite::engine
