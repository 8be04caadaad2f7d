// Decides when this rank sends heartbeats to other hosts, and which other hosts have sent none for too long. A pure state
// machine.
// Thread: one at a time. Owns: when each host was heard last. Blocks: no. Throws: std::bad_alloc.
//
// The leaders of the hosts (their lowest ranks) send each other a message at intervals, and expect no answer. An engine makes
// passes while its program computes, so a busy rank still sends. Any other message from a host counts as a heartbeat, too,
// because a heartbeat may wait behind large data. If tick() was not called for half of the time `shortest`
// (FailureDetector::Limits), then this process was stopped, this computer was asleep, or the driver was held up. In that case
// the silence of all hosts begins anew.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "base/thread.h"

namespace hvdlite::engine {

class Heartbeat {
 public:
  // A host is named by its leader. hosts: the other hosts. timeout: tick() names hosts that have been silent for longer than
  // this; if it is zero, tick() names no host. shortest: see FailureDetector::Limits.
  Heartbeat(const std::vector<int>& hosts, base::microseconds timeout, base::microseconds shortest,
            base::Clock::time_point now);

  // A message of the host has arrived. Does nothing for a host that the constructor did not get, or whose leader has left.
  void heard(int host, base::Clock::time_point now);
  // The rank has left without a failure. If it led a host, the host sends no more heartbeats, and its silence no longer counts.
  void forget(int rank) {
    heard_.erase(rank);
    quiet_.erase(rank);
  }

  // A host is quiet when it has been silent for the timeout divided by this number. With the default timeout it has then missed
  // two heartbeats.
  static constexpr int kQuietDivisor = 2;
  struct Actions {
    std::vector<int> send;    // leaders to send a heartbeat to
    std::vector<int> quiet;   // hosts that have become quiet; each is named once in a silence
    std::vector<int> silent;  // hosts that have been silent for too long
  };
  Actions tick(base::Clock::time_point now);
  // Hosts that had been silent for longer than `silence` at the last tick().
  std::vector<int> silent_for(base::microseconds silence) const;

 private:
  base::microseconds timeout_;
  base::microseconds shortest_;
  base::microseconds interval_;
  std::map<int, base::Clock::time_point> heard_;  // by leader
  std::set<int> quiet_;                           // leaders that Actions::quiet has named
  base::Clock::time_point looked_;                // the time of the last tick()
  base::Clock::time_point sent_;                  // when this rank sent heartbeats last
};

}  // namespace hvdlite::engine
