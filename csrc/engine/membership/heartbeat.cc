// An example: `timeout` and `shortest` are 10 seconds, so the interval between two heartbeats is 2 seconds. The last message of
// host 4 (the host whose leader is rank 4) arrives at second 0:
//
//    2, 4 s           heartbeats of host 4 are missing
//    more than 5 s    tick() names host 4 in `quiet`, once
//    more than 10 s   tick() names host 4 in `silent`
//
// If a message of host 4 arrives after tick() has named the host in `quiet`, heard() removes the host from quiet_. So tick()
// names the host again in its next silence.
#include "engine/membership/heartbeat.h"

#include <algorithm>

namespace hvdlite::engine {

using base::Clock;
using base::microseconds;

namespace {

// The time `shortest` (FailureDetector::Limits) is at least this many times as long as the interval between two heartbeats. So
// one late heartbeat has no consequence.
constexpr int kHeartbeatsInShortest = 5;
// The longest interval between two heartbeats.
constexpr microseconds kLongestInterval{2'000'000};
// Between two calls of tick() normally less time passes than `shortest` divided by this number. If more time has passed, this
// process did not run, or the thread that calls tick() was in another call for too long.
constexpr int kAwayDivisor = 2;
}  // namespace

Heartbeat::Heartbeat(const std::vector<int>& hosts, microseconds timeout, microseconds shortest,
                     Clock::time_point now)
    : timeout_(timeout),
      shortest_(shortest),
      interval_(std::min(shortest / kHeartbeatsInShortest, kLongestInterval)),
      looked_(now),
      sent_(now) {
  for (const int host : hosts) heard_[host] = now;
}

void Heartbeat::heard(int host, Clock::time_point now) {
  const auto found = heard_.find(host);
  if (found == heard_.end()) return;
  found->second = now;
  quiet_.erase(host);
}

Heartbeat::Actions Heartbeat::tick(Clock::time_point now) {
  Actions actions;
  // After a long pause the silence of all hosts begins anew before it is measured, because messages that came during the pause
  // may still be unread.
  if (now - looked_ > shortest_ / kAwayDivisor) {
    for (auto& [host, when] : heard_) when = now;
    quiet_.clear();
  }
  looked_ = now;
  if (now - sent_ >= interval_) {
    // Counts from now and not from the time at which the heartbeat was due. So after a late tick() the next heartbeat still
    // comes a whole interval later.
    sent_ = now;
    for (const auto& [host, when] : heard_) actions.send.push_back(host);
  }
  if (timeout_.count() == 0) return actions;
  for (const int host : silent_for(timeout_ / kQuietDivisor)) {
    if (quiet_.insert(host).second) actions.quiet.push_back(host);
  }
  actions.silent = silent_for(timeout_);
  return actions;
}

// Measures up to the last tick() and not up to the present. Otherwise the time for which this process itself did not run would
// count as silence of the others.
std::vector<int> Heartbeat::silent_for(microseconds silence) const {
  std::vector<int> hosts;
  for (const auto& [host, when] : heard_) {
    if (looked_ - when > silence) hosts.push_back(host);
  }
  return hosts;
}

}  // namespace hvdlite::engine
