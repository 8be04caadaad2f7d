// The state of the job as one rank sees it: which ranks have left or failed, and which ranks are silent, delay others or wait
// for ever.
// Thread: one at a time. Owns: the detectors of failures, stalls and deadlocks. Blocks: never.
// Throws: Error(Internal) on messages that no correct rank sends, std::bad_alloc, and what the facts throw.
//
// A pure state machine: time, messages and facts go in; actions come out, and the driver carries them out in order. The
// machine calls no transport and knows no thread. The machine can be copied. digest() tells apart states that differ in how
// ranks have ended.
//
//   what another rank says --> hear() ----------------+
//   what this rank does -----> leave, raise, fail ----+--> Actions: send, announce, warn, fail, left, undecided, log
//   the time, and Facts -----> look() ----------------+
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread.h"
#include "engine/membership/deadlock.h"
#include "engine/membership/failure_detector.h"
#include "engine/membership/stall.h"
#include "engine/model/messages.h"

namespace hvdlite::engine {

class Membership : public MembershipActions {
 public:
  using Time = base::Clock::time_point;

  // Seconds; 0: never.
  struct Limits {
    double deadlock = 0;  // how long ranks may wait for each other
    StallInspector::Limits stall;
    double peer = 0;  // silence of another host
  };

  // --- the questions that Membership asks its rank ---
  class Facts : public FailureDetector::Facts {
   public:
    // A number that changes when data of operations move, and when a GPU ends an operation. It may change for control messages,
    // too.
    virtual std::uint64_t activity() = 0;
    // A number that changes when this rank submits an operation, and when one ends.
    virtual std::uint64_t version() = 0;
    // all_wait: does WaitRegistry know a thread, and do all threads that it knows wait? callbacks_wait: will the end of an
    // operation in flight run a callback?
    virtual bool all_wait() = 0;
    virtual bool callbacks_wait() = 0;
    // Does this rank wait only for operations that are not agreed? And for which?
    virtual BlockedReport blocked() = 0;
    // The flight recorder's number of the operation submitted last.
    virtual std::uint64_t newest() = 0;
    // Calls visit(request, number, under way) for each unfinished operation of this rank that has left the queue. number: its
    // number in the flight recorder. under way: it is agreed, or (a send or receive) matched.
    using Visit = std::function<void(const Request&, std::uint64_t, bool)>;
    virtual void for_each_unfinished(const Visit& visit) = 0;
    virtual bool has_joined(SetId set) = 0;
    // See StallReply::since_exemption.
    virtual double since_exemption(Time now) = 0;
    // ask_program: asks the watchdog thread where this rank's program is; false: no thread can answer. take_answer: the answer,
    // once it has come.
    virtual bool ask_program() = 0;
    virtual std::optional<std::string> take_answer() = 0;
    // Describes what this rank can see of the process of a rank that does not answer; returns "" if it sees nothing.
    virtual std::string state_of(int rank) = 0;
  };

  Membership(Roster roster, const Limits& limits, Time now);

  const Roster& roster() const { return failures_.roster(); }
  void add_set(SetId id, Roster::Members members) {
    failures_.roster().add_set(id, std::move(members));
  }
  void remove_set(SetId id) { failures_.roster().remove_set(id); }

  // --- what this rank does ---
  // This rank takes part in no later operation. undecided: the coordinators (other ranks) that may still decide operations for
  // which this rank waits. goodbyes_answered: has each of these coordinators answered, or left itself? A coordinator that is
  // killed does neither, so the wait needs a time limit.
  Actions leave(std::set<int> undecided);
  bool said_goodbye() const { return said_goodbye_; }
  bool goodbyes_answered() const { return goodbye_unseen_.empty(); }
  // See FailureDetector.
  Actions raise(const std::string& cause) { return failures_.raise(cause); }
  bool failure_seen_by_all() const { return failures_.failure_seen_by_all(); }
  Actions fail(base::ErrorCode code, const std::string& text) { return failures_.fail(code, text); }

  // --- what others say ---
  // After this rank has failed, call hear_late() instead (see FailureDetector).
  Actions hear(int source, Failure message, Time, Facts&) {
    return failures_.hear(source, message);
  }
  // A FailureSeen goes only to a rank that has failed, and there hear_late() handles it.
  Actions hear(int, FailureSeen, Time, Facts&) { return {}; }
  Actions hear(int source, Goodbye message, Time now, Facts& facts);
  Actions hear(int source, GoodbyeSeen message, Time now, Facts& facts);
  Actions hear(int source, Alive message, Time now, Facts& facts);
  Actions hear(int source, BlockedReport message, Time now, Facts& facts);
  Actions hear(int source, Probe message, Time now, Facts& facts);
  Actions hear(int source, Inquiry message, Time now, Facts& facts);
  Actions hear(int source, StallReply message, Time now, Facts& facts);
  Actions hear_late(int source, const Message& message) {
    return failures_.hear_late(source, message);
  }

  // --- looks at intervals ---
  // Is it time for look()?
  bool due(Time now) const;
  // Looks for lost ranks, silent hosts, stalls and deadlocks, sends this host's heartbeats, and sends replies that waited for
  // the watchdog.
  Actions look(Time now, Facts& facts);
  // The part of look() that also runs after an error of the transport: the error may come from a lost rank.
  Actions look_for_lost(Facts& facts) { return failures_.find_lost(facts); }
  // May this rank (on rank 0: any rank) be in a deadlock, or is a question about a stall open? If so, the next pass should come
  // soon.
  bool watching() const;

  // A number for one part of the state: which ranks have left or failed, and from which ranks an answer to the Goodbye or to
  // the failure of this rank is missing. The number does not depend on the rest of the state: heartbeats, stalls, deadlocks.
  std::uint64_t digest() const;

 private:
  // What the last look found: may this rank be blocked (deadlock.h)?
  struct Blocked {
    bool blocked = false;       // all_wait() or callbacks_wait(), even for agreed operations
    bool reported = false;      // rank 0 has this rank's report
    std::uint64_t version = 0;  // Facts::version
    Time since;                 // the last look that found `blocked` or `version` changed
  };
  // A question of another rank about a stall. This rank's reply waits for the watchdog, but not longer than `until`.
  struct Unanswered {
    int rank = 0;
    Time until;
    StallReply answer;
  };

  // --- in membership.cc ---
  void goodbye_was_seen(int coordinator, Actions& actions);
  // --- in waiting.cc ---
  // Sends the message, unless the rank has left.
  void send(int rank, Message message, Actions& actions) const;
  void report_if_blocked(Time now, Facts& facts, Actions& actions);
  void tell_rank_0(BlockedReport report, Actions& actions);
  void look_for_deadlocks(Time now, Actions& actions);
  void inspect_stalls(Time now, Facts& facts, Actions& actions);
  void give_answers(Time now, Facts& facts, Actions& actions);
  std::vector<Stalled> stalled(Time now, Facts& facts) const;

  FailureDetector failures_;
  Limits limits_;
  bool said_goodbye_ = false;
  std::set<int> goodbye_unseen_;  // coordinators that have neither answered nor left
  Time looked_at_;
  std::optional<DeadlockDetector> detector_;  // on rank 0; otherwise nothing
  Blocked blocked_;
  std::optional<StallInspector> inspector_;  // nothing if both limits are 0, or the rank is alone
  std::vector<Unanswered> unanswered_;
};

}  // namespace hvdlite::engine
