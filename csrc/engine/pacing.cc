// The limits of longest_sleep(), by the "time waited", the time for which nothing has happened. "No bell" means that some rank
// cannot ring this rank's doorbell. If there is no bell, or while data move, a sleep is at most as long as the time waited so
// far, so that it at most doubles a wait. (It may last 20 µs even if the time waited is shorter.)
//
//    time waited   moving data   negotiating, no bell   idle, no bell   negotiating, bells   idle, bells
//    10 µs         20 µs         20 µs                  20 µs           10 ms                250 ms
//    1 ms          200 µs        200 µs                 1 ms            10 ms                250 ms
//    100 ms        200 µs        4 ms                   5 ms            10 ms                250 ms
//    10 s          200 µs        5 ms                   50 ms           10 ms                250 ms
//
// With bells the limits are long, because a ring ends the sleep. These long limits only protect against a ring that is lost,
// and bound the time between two looks of Membership, which looks only in passes. Not every movement of data rings a bell, so
// the limit while data move is short even with bells. A GPU at work shortens a sleep to at most 2 ms, and `due` shortens every
// sleep.
#include "engine/pacing.h"

#include <algorithm>
#include <cstdint>

namespace hvdlite::engine {

using base::microseconds;

namespace {

// The longest sleeps if every other rank can ring this rank's bell.
constexpr microseconds kSleepIdle{250'000};
constexpr microseconds kSleepNegotiating{10'000};
// If some rank cannot ring the bell, the longest sleep is a share of the time waited (kIdleShare), between two of these three
// limits: the first two for a rank that negotiates, the last two for an idle rank.
constexpr microseconds kSleepNegotiatingNoBell{200};
constexpr microseconds kSleepLongNoBell{5'000};
constexpr microseconds kSleepIdleNoBell{50'000};
// These two limits hold with bells and without.
constexpr microseconds kFirstSleep{20};
constexpr microseconds kSleepMovingData{200};
// The longest sleep while a GPU works. So the engine asks NCCL for errors at least this often.
constexpr microseconds kSleepGpu{2'000};
// If a rank has waited long, another rank is slow. If the slow rank may be unable to ring the bell, the waiting rank sleeps
// for this share of the time waited and then makes a pass: a sleep that is so short, compared with the wait, hardly delays the
// waiting rank. An idle rank takes the same share, because its sleeps hardly ever delay anybody. Its own callers ring its bell
// when they submit. Operations of other ranks wait for a pass of the idle rank in one case only: the idle rank is the
// coordinator of set 0, and other ranks add a process set of which the idle rank is no member.
constexpr double kIdleShare = 0.04;
// A port refuses a step (Negotiation::tries_again) most often because another rank holds the ledger's lock. That rank may be
// stopped for a long time, and each try costs about ten microseconds. So the pause before the next try is the time for which
// nothing has happened, divided by kTryDivisor, but at least kTryAgain and at most kTryAgainLater.
constexpr microseconds kTryAgain{20};
constexpr microseconds kTryAgainLater{10'000};
constexpr int kTryDivisor = 8;
// The time between two gradients of one training step is usually less than HVDLITE_CYCLE_TIME divided by this number.
constexpr int kCycleDivisor = 8;

}  // namespace

microseconds longest_sleep(const Outlook& outlook, bool bells_reach_all) {
  // Exponential back-off: sleep as long as this wait has lasted so far, within the limits.
  const auto grown = std::max(kFirstSleep, outlook.idle);
  const auto share = microseconds(
      static_cast<std::int64_t>(static_cast<double>(outlook.idle.count()) * kIdleShare));
  microseconds limit =
      bells_reach_all ? kSleepIdle : std::clamp(share, kSleepLongNoBell, kSleepIdleNoBell);
  if (outlook.negotiating || outlook.watching) {
    limit = bells_reach_all ? kSleepNegotiating
                            : std::clamp(share, kSleepNegotiatingNoBell, kSleepLongNoBell);
  }
  if (outlook.gpu_at_work) limit = std::min(limit, kSleepGpu);
  // A message under way may need progress on both sides, and no bell rings for that.
  if (outlook.moving_data) limit = kSleepMovingData;
  if (outlook.moving_data || !bells_reach_all) limit = std::min(limit, grown);
  if (outlook.due.count() > 0) limit = std::min(limit, outlook.due);
  return limit;
}

microseconds pause_before_trying_again(microseconds idle) {
  return std::clamp(idle / kTryDivisor, kTryAgain, kTryAgainLater);
}

Patience patience_of(double cycle_time_ms, int ranks) {
  const microseconds cycle = base::from_seconds(cycle_time_ms / 1000);
  const microseconds nothing{0};  // a rank that is alone has nobody to send to
  return {.since_first = cycle, .since_last = ranks > 1 ? cycle / kCycleDivisor : nothing};
}

}  // namespace hvdlite::engine
