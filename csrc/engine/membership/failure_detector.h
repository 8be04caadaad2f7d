// Which ranks have failed, and how this rank fails itself: the one place that decides both, with an engine and without.
// Thread: one at a time. Owns: the roster, and when each other host was heard last. Blocks: never. Throws: what the facts throw.
//
// A pure machine, which two drivers use: Membership, in the passes of the engine; and Job (job/job.h), in init() before there is an
// engine and from shutdown() to the end of the program. The first failure decides: after it the machine finds no other.
//
//   a rank of this host has ended, or said why --> Facts::find_lost --+
//   another rank says that it fails -------------> hear(Failure) -----+--> lose: Fail, and Warn for the other hosts
//   a host gives no sign of life for too long ---> Heartbeat ---------+--> Announce to all, and Fail
//   this rank's own error or exception ----------> fail, raise -------+
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/thread.h"
#include "engine/membership/actions.h"
#include "engine/membership/heartbeat.h"
#include "engine/membership/roster.h"

namespace hvdlite::engine {

class FailureDetector : public MembershipActions {
 public:
  using Time = base::Clock::time_point;

  // What it asks of its rank, as of now.
  class Facts {
   public:
    virtual ~Facts() = default;
    // Has a rank ended without leaving, or announced a failure? If so its rank, and what it said (or how it went). Each rank once.
    virtual bool find_lost(int* rank, std::string* how) = 0;
    // Changes whenever something of this rank has arrived.
    virtual std::uint64_t received_from(int rank) = 0;
  };

  // silence: seconds without a sign of life after which another host is lost; 0: never. shortest: seconds of the shortest silence
  // that anybody will ask for; 0: nobody asks, and no signs of life are sent.
  struct Limits {
    double silence = 0;
    double shortest = 0;
  };
  FailureDetector(Roster roster, Limits limits, Time now);

  const Roster& roster() const { return roster_; }
  Roster& roster() { return roster_; }
  bool failed() const { return failed_; }
  // "rank 1 (host a, pid 17) <what>. Horovod has been shut down", of this rank.
  std::string me(const std::string& what) const;

  // --- how this rank fails ---
  // Of its own accord; the user knows already. It then waits until all others have heard of it.
  void raise(const std::string& cause, Actions& actions);
  bool failure_seen_by_all() const { return failure_unseen_.empty(); }
  // An error below: this rank can go on no more, and the others must not wait for it.
  void fail(base::ErrorCode code, const std::string& text, Actions& actions);
  // For a reason that is about others, who are told as well: a stall without end, say.
  void give_up(base::ErrorCode code, const std::string& cause, Actions& actions);

  // --- how others do ---
  void hear(int source, const Failure& message, Actions& actions);
  void hear_sign_of_life(int source, Time now);
  // For a rank that has failed: it only notes who else knows of the failure, and answers those that wait for an answer.
  void hear_late(int source, const Message& message, Actions& actions);
  // The rank has left in good order: it is neither lost nor silent.
  void leave(int rank);
  // What the facts tell of lost ranks.
  void find_lost(Facts& facts, Actions& actions);
  // Signs of life for the other hosts, and which of them have given none. Only leaders of hosts send and watch.
  void keep_in_touch(Time now, Facts& facts, Actions& actions);
  // The ranks of the hosts that have been silent for so many seconds, described; empty: there are none.
  std::string silent_for(double seconds) const;
  bool keeps_in_touch() const { return heartbeat_.has_value(); }

  void add_to(base::Hasher& hasher) const;

 private:
  void lose(int rank, const std::string& how, Actions& actions);
  void lose_host(int host, Actions& actions);
  void warn_other_hosts(int lost, const std::string& how, Actions& actions);
  std::string ranks_of(int host) const;

  Roster roster_;
  Limits limits_;
  bool failed_ = false;
  std::set<int> failure_unseen_;
  std::optional<Heartbeat> heartbeat_;  // on leaders of hosts, where there are several
  std::vector<std::uint64_t>
      received_;  // from each rank, when last looked; empty without heartbeat_
};

}  // namespace hvdlite::engine
