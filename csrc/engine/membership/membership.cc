// How a rank leaves. An example: rank 1 leaves, and rank 0 coordinates a set in which rank 1 still waits for operations.
//
//    rank 1              rank 0
//    leave: Goodbye ───► hear: Left for rank 1
//    hear: Undecided ◄── GoodbyeSeen
//
// Until the answer comes, rank 0 may still decide these operations, so rank 1 keeps them open. If both ranks leave at the same
// time, each Goodbye also serves as the answer to the other one. A rank that coordinates no such set gets a Goodbye that asks
// for no answer.
//
// look() takes its steps in this order: lost ranks, silent hosts, stalls, deadlocks. Lost ranks come first, because a lost rank
// also makes operations stall, and its loss is then the cause to report. When a step has found a failure, the later steps are
// left out, because only the first failure counts.
#include "engine/membership/membership.h"

#include "engine/model/hashing.h"
#include "engine/model/text.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::Status;

namespace {

// The least time between two looks. A look goes over all ranks, so not every pass makes one. The usual values of
// Membership::Limits are much longer than this time.
constexpr base::microseconds kLookInterval{20'000};

}  // namespace

Membership::Membership(Roster roster, const Limits& limits, Time now)
    : failures_(std::move(roster), {limits.peer, limits.peer}, now), limits_(limits) {
  const Roster& all = failures_.roster();
  if (limits.stall.least() > 0 && all.size() > 1) inspector_.emplace(limits.stall, all.rank());
  // A rank waits for half of the limit before it reports (if callbacks wait, for longer: kUnseen in waiting.cc), and the
  // detector waits for the other half before it probes. So a deadlock is found after about the whole limit.
  if (all.rank() == 0) detector_.emplace(base::from_seconds(limits.deadlock / 2));
}

// --- endings ----------------------------------------------------------------------------------------------------------

Membership::Actions Membership::leave(std::set<int> undecided) {
  Actions actions;
  said_goodbye_ = true;
  goodbye_unseen_ = std::move(undecided);
  for (const int peer : roster().others()) {
    actions.emplace_back(Send{peer, Goodbye{goodbye_unseen_.contains(peer)}});
  }
  return actions;
}

Membership::Actions Membership::hear(int source, Goodbye message, Time, Facts&) {
  Actions actions;
  failures_.leave(source);
  // Withdraws the rank's last report: its operations end because it has left, so they are no deadlock.
  if (detector_) detector_->report(source, BlockedReport{});
  actions.emplace_back(
      Left{source,
           {ErrorCode::kAborted, roster().describe(source) +
                                     " has left: its program ended or called shutdown(), and it "
                                     "takes part in no later operation. " +
                                     kShutDown + " on that rank"}});
  if (message.answer) actions.emplace_back(Send{source, GoodbyeSeen{}});
  goodbye_was_seen(source, actions);
  return actions;
}

Membership::Actions Membership::hear(int source, GoodbyeSeen, Time, Facts&) {
  Actions actions;
  goodbye_was_seen(source, actions);
  return actions;
}

// The coordinator has sent a GoodbyeSeen or its own Goodbye. Before that message it has sent all its decisions in which this
// rank takes part, and messages arrive in order. So the operations for which this rank still waits in the coordinator's sets
// will never be decided.
void Membership::goodbye_was_seen(int coordinator, Actions& actions) {
  if (goodbye_unseen_.erase(coordinator) > 0) actions.emplace_back(Undecided{coordinator});
}

Membership::Actions Membership::hear(int source, Alive, Time now, Facts&) {
  failures_.hear_heartbeat(source, now);
  return {};
}

// --- looks at intervals -------------------------------------------------------------------------------------------------

bool Membership::due(Time now) const { return now - looked_at_ >= kLookInterval; }

Membership::Actions Membership::look(Time now, Facts& facts) {
  looked_at_ = now;
  Actions actions = failures_.find_lost(facts);
  // After the Goodbyes the other ranks no longer expect heartbeats of this one.
  if (!failures_.failed() && !said_goodbye_) append(actions, failures_.keep_in_touch(now, facts));
  if (!failures_.failed()) inspect_stalls(now, facts, actions);
  if (!failures_.failed() && limits_.deadlock > 0) {
    report_if_blocked(now, facts, actions);
    look_for_deadlocks(now, actions);
  }
  return actions;
}

// --- the state as a number --------------------------------------------------------------------------------------------

std::uint64_t Membership::digest() const {
  base::Hasher hasher;
  failures_.add_to(hasher);
  hasher.add(said_goodbye_ ? 1 : 0);
  add_ranks(hasher, goodbye_unseen_);
  return hasher.value();
}

}  // namespace hvdlite::engine
