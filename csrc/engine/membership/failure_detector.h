// Decides which other ranks have failed, and whether this rank fails, and for which cause. No other code makes these decisions,
// whether the rank has an engine or not.
// Thread: one at a time. Owns: the roster, and the time of the last message from every other host. Blocks: never. Throws: what
// the facts throw, and std::bad_alloc.
//
// A pure state machine with two drivers: Membership in the passes of the engine, and Job (job/job.h) for the time without an
// engine. Only the first failure counts: after it find_lost() does nothing, and the driver must call neither hear() nor
// keep_in_touch() any more.
//
//   the transport or the kernel reports a lost rank --> find_lost ------> Fail; for a rank of this host also Warn
//   another rank says that it fails -----------------> hear(Failure) ---> Fail, and Send FailureSeen
//   a host sends no heartbeat for too long ----------> keep_in_touch --+
//   this rank's own error or exception --------------> fail, raise ----+-> Announce to the ranks that have not left, and Fail
//   this rank waits for too long --------------------> give_up --------+
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

  // The questions that the machine asks its rank. An answer describes the present moment.
  class Facts {
   public:
    virtual ~Facts() = default;
    // Has a rank ended without leaving, or announced a failure? If so, gives the rank and the cause. Reports each rank once.
    virtual bool find_lost(int* rank, std::string* how) = 0;
    // A number that changes when anything from `rank` arrives.
    virtual std::uint64_t received_from(int rank) = 0;
  };

  // Seconds. silence: another host is lost after this time without any message; 0: never. shortest: the smaller one of two
  // limits: `silence`, and the driver's own limit for silent hosts. (Job passes its limit, or a part of it, to silent_for();
  // Membership has no limit of its own.) A limit of 0 does not count. A host sends several heartbeats in the time `shortest`.
  // If `shortest` is 0, this rank sends no heartbeats and expects none.
  struct Limits {
    double silence = 0;
    double shortest = 0;
  };
  FailureDetector(Roster roster, Limits limits, Time now);

  const Roster& roster() const { return roster_; }
  Roster& roster() { return roster_; }
  bool failed() const { return failed_; }
  // "rank 1 (host a, pid 17) <what>. Horovod has been shut down", about this rank.
  std::string me(const std::string& what) const;

  // --- how this rank fails ---
  // This rank fails because of an exception that its user knows. Every rank gets the text me(cause). The driver may then wait
  // for failure_seen_by_all().
  Actions raise(const std::string& cause);
  // After raise(): have all other ranks confirmed the failure, failed themselves, or left? A rank that was killed does none of
  // these, so the wait needs a time limit. Without raise(): true.
  bool failure_seen_by_all() const { return failure_unseen_.empty(); }
  // This rank cannot continue because of an error in the engine or the transport. Every rank gets me("failed: " + text).
  Actions fail(base::ErrorCode code, const std::string& text) {
    return give_up(code, "failed: " + text);
  }
  // This rank fails because of other ranks, for example after a stall that does not end. Every rank gets me(cause).
  Actions give_up(base::ErrorCode code, const std::string& cause);

  // --- how other ranks end ---
  Actions hear(int source, const Failure& message);
  void hear_heartbeat(int source, Time now);
  // For a rank that has failed: notes which other ranks know of this rank's failure, and answers messages that need an answer.
  Actions hear_late(int source, const Message& message);
  // The rank has left without a failure: it does not count as lost. If it led a host, the host does not count as silent.
  void leave(int rank);
  // Asks the facts for lost ranks. Makes this rank fail because of the first lost rank that has not left.
  Actions find_lost(Facts& facts);
  // Sends heartbeats to the other hosts, logs a warning about each host from which nothing comes, and makes this rank fail when
  // such a host counts as lost. Does nothing unless keeps_in_touch().
  Actions keep_in_touch(Time now, Facts& facts);
  // Does this rank send heartbeats and watch other hosts? Only the leaders of hosts (their lowest ranks) do. If
  // Limits::shortest is 0, no rank does.
  bool keeps_in_touch() const { return heartbeat_.has_value(); }
  // Describes the ranks of the hosts that had been silent for more than this many seconds at the last keep_in_touch(). Returns
  // "" if there was no such host, or if this rank watches no hosts.
  std::string silent_for(double seconds) const;

  // Adds to a digest (Membership::digest) which ranks have left or failed, and who knows of this rank's failure.
  void add_to(base::Hasher& hasher) const;

 private:
  Fail lose(int rank, const std::string& how);
  Actions lose_host(int host);
  std::string ranks_of(int host) const;

  Roster roster_;
  Limits limits_;
  bool failed_ = false;
  std::set<int> failure_unseen_;
  std::optional<Heartbeat> heartbeat_;  // nothing unless keeps_in_touch()
  // Facts::received_from() of each rank at the last keep_in_touch(); empty without heartbeat_.
  std::vector<std::uint64_t> received_;
};

}  // namespace hvdlite::engine
