// Which other hosts still answer: when to give them a sign of life, and which of them has given none for too long. Pure.
// Thread: one at a time. Owns: when each host was heard last. Blocks: no. Throws: nothing.
//
// The leaders of the hosts (their lowest ranks) send each other a message at intervals, without asking for an answer: an engine
// makes passes while its program computes, so who is busy still sends. Everything else that comes from a host is a sign of its
// life too, for behind large data a small message waits. A rank that did not get to look for long was itself away (stopped, or
// its machine asleep) and accuses nobody of that time.
#pragma once

#include <map>
#include <vector>

#include "base/hash.h"
#include "base/thread.h"

namespace hvdlite::engine {

class Heartbeat {
 public:
  // hosts: the leaders of the other hosts. timeout: tick() names the hosts that have been silent for longer; zero: none. shortest:
  // silent_for() is asked for no shorter silence than this, so several signs of life are sent in so long a time.
  Heartbeat(const std::vector<int>& hosts, base::microseconds timeout, base::microseconds shortest,
            base::Clock::time_point now);

  void heard(int host, base::Clock::time_point now);
  // It has left in good order, and need not be heard again.
  void forget(int host) { heard_.erase(host); }

  struct Actions {
    std::vector<int> send;    // leaders that a sign of life is due to
    std::vector<int> silent;  // hosts that have given none for too long
  };
  Actions tick(base::Clock::time_point now);
  // Hosts that had been silent for longer than that at the last tick().
  std::vector<int> silent_for(base::microseconds silence) const;

  void add_to(base::Hasher& hasher) const;

 private:
  base::microseconds timeout_;
  base::microseconds shortest_;
  base::microseconds interval_;
  std::map<int, base::Clock::time_point> heard_;  // by leader
  base::Clock::time_point looked_;
  base::Clock::time_point sent_;
};

}  // namespace hvdlite::engine
