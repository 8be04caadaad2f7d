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
// NCCL's errors are looked for this often while the GPU is at work.
constexpr microseconds kSleepGpu{2'000};
constexpr microseconds kFirstSleep{20};
// Without a bell a long wait is a wait for a slow rank: to look less often by this share of the time waited is not felt. Nor is
// it by a rank that has had nothing to do for so long, and is not waited for: who submits rings its own engine.
constexpr double kIdleShare = 0.04;
// Who is at it may have been stopped, and each look costs some ten microseconds: soon again, and then after this part of the time
// for which nothing has happened.
constexpr microseconds kTryAgain{20};
constexpr microseconds kTryAgainLater{10'000};
constexpr int kLooksPerWait = 8;
// Gradients of one step come closer together than this part of a cycle.
constexpr int kPausesInCycle = 8;

}  // namespace

microseconds longest_sleep(const Outlook& outlook, bool bells_reach_all) {
  // Back-off: sleep as long again as this wait has lasted, within the limits.
  const auto grown = std::max(kFirstSleep, outlook.idle);
  const auto patient = microseconds(
      static_cast<std::int64_t>(static_cast<double>(outlook.idle.count()) * kIdleShare));
  microseconds limit =
      bells_reach_all ? kSleepIdle : std::clamp(patient, kSleepPatientNoBell, kSleepIdleNoBell);
  if (outlook.negotiating || outlook.watching) {
    limit = bells_reach_all ? kSleepNegotiating
                            : std::clamp(patient, kSleepNegotiatingNoBell, kSleepPatientNoBell);
  }
  // A message under way may need both sides' progress without either ringing.
  if (outlook.gpu_at_work) limit = std::min(limit, kSleepGpu);
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
