#include "engine/membership/heartbeat.h"

#include <algorithm>

#include "engine/model/hashing.h"

namespace hvdlite::engine {

using base::Clock;
using base::microseconds;

namespace {

// Several signs of life may be late before the silence counts.
constexpr int kSignsInTimeout = 5;
constexpr microseconds kLongestInterval{2'000'000};
// Looking is a matter of milliseconds; who has not for a good part of the timeout did not run.
constexpr int kAwayPart = 2;

}  // namespace

Heartbeat::Heartbeat(const std::vector<int>& hosts, microseconds timeout, Clock::time_point now)
    : timeout_(timeout),
      interval_(std::min(timeout / kSignsInTimeout, kLongestInterval)),
      looked_(now),
      sent_(now) {
  for (const int host : hosts) heard_[host] = now;
}

void Heartbeat::heard(int host, Clock::time_point now) {
  const auto found = heard_.find(host);
  if (found != heard_.end()) found->second = now;
}

Heartbeat::Actions Heartbeat::tick(Clock::time_point now) {
  Actions actions;
  if (now - looked_ > timeout_ / kAwayPart) {
    for (auto& [host, when] : heard_) when = now;
  }
  looked_ = now;
  const bool due = now - sent_ >= interval_;
  if (due) sent_ = now;
  for (const auto& [host, when] : heard_) {
    if (due) actions.send.push_back(host);
    if (now - when > timeout_) actions.silent.push_back(host);
  }
  return actions;
}

void Heartbeat::add_to(base::Hasher& hasher) const {
  hasher.add(heard_.size());
  for (const auto& [host, when] : heard_) {
    hasher.add_signed(host);
    add_time(hasher, when);
  }
  add_time(hasher, looked_);
  add_time(hasher, sent_);
}

}  // namespace hvdlite::engine
