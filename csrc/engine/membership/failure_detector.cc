// How a loss spreads. An example: the ranks 0 and 1 are on one host, and the ranks 2 and 3 on another. Rank 1 is killed.
//
//    rank 0                   ranks 2 and 3
//    find_lost: rank 1
//    Fail "rank 1 ..."
//    Warn: Failure ─────────► hear: Fail "rank 0 ... has lost its neighbour: rank 1 ..."
//    hear_late ◄───────────── Send FailureSeen
//
// The message Failure carries only the cause, without the name of its sender. The receiver puts the sender's name in front of
// the cause (lose()). After an Announce the sender does the same in its own Fail (me()), so that both show the same text,
// unless the receiver has failed before. After a Warn their texts differ, as in the example: only the receiver's text names
// the sender.
//
// failure_unseen_ is filled by raise() alone, with all other ranks that have not left. hear_late() removes a rank that confirms
// the failure, fails or leaves. After other failures the set is empty, because nobody waits for confirmations.
//
// Which ranks send heartbeats. An example with the ranks 0 and 1 on one host, 2 and 3 on another, and 4 on a third one:
//
//    0, 2, 4    are the leaders: each sends heartbeats to the two others, and watches their hosts
//    1, 3       have no heartbeat_: they learn of a silent host from a leader (lose_host announces the failure)
//
// If a leader leaves, no other rank of its host takes its place: the other leaders no longer watch this host.
#include "engine/membership/failure_detector.h"

#include "base/text.h"
#include "engine/model/hashing.h"
#include "engine/model/text.h"

namespace hvdlite::engine {

using base::ErrorCode;

namespace {

// The leaders of the other hosts; none if this rank is no leader.
std::vector<int> other_leaders(const Roster& roster) {
  std::vector<int> leaders;
  if (roster.host_of(roster.rank()) != roster.rank()) return leaders;
  for (const int rank : roster.others()) {
    if (roster.host_of(rank) == rank) leaders.push_back(rank);
  }
  return leaders;
}

}  // namespace

FailureDetector::FailureDetector(Roster roster, Limits limits, Time now)
    : roster_(std::move(roster)), limits_(limits) {
  const std::vector<int> leaders = other_leaders(roster_);
  if (limits_.shortest <= 0 || leaders.empty()) return;
  received_.resize(static_cast<std::size_t>(roster_.size()));
  heartbeat_.emplace(leaders, base::from_seconds(limits_.silence),
                     base::from_seconds(limits_.shortest), now);
}

std::string FailureDetector::me(const std::string& what) const {
  return roster_.describe(roster_.rank()) + " " + what + ". " + kShutDown;
}

// --- how this rank fails ----------------------------------------------------------------------------------------------

FailureDetector::Actions FailureDetector::raise(const std::string& cause) {
  for (const int peer : roster_.others()) failure_unseen_.insert(peer);
  failed_ = true;
  return {Announce{cause, roster_.others()}, Fail{{ErrorCode::kAborted, me(cause)}, /*told=*/true}};
}

FailureDetector::Actions FailureDetector::give_up(ErrorCode code, const std::string& cause) {
  failed_ = true;
  return {Announce{cause, roster_.others()}, Fail{{code, me(cause)}}};
}

// --- how other ranks end ----------------------------------------------------------------------------------------------

// Answers every Failure: the message does not say whether the sender's driver waits for confirmations (after raise()).
// Fail comes before the answer: if the sending throws, this rank has already recorded the cause.
FailureDetector::Actions FailureDetector::hear(int source, const Failure& message) {
  return {lose(source, message.cause), Send{source, FailureSeen{}}};
}

void FailureDetector::hear_heartbeat(int source, Time now) {
  if (heartbeat_) heartbeat_->heard(roster_.host_of(source), now);
}

// Only the first failure counts. So this rank keeps its own cause when another rank's Failure comes later, and only answers the
// Failure. A rank that leaves gets its answer at once, because this rank decides nothing more.
FailureDetector::Actions FailureDetector::hear_late(int source, const Message& message) {
  Actions actions;
  const bool fails = std::holds_alternative<Failure>(message);
  if (fails) actions.emplace_back(Send{source, FailureSeen{}});
  const auto* goodbye = std::get_if<Goodbye>(&message);
  if (goodbye != nullptr && goodbye->answer) actions.emplace_back(Send{source, GoodbyeSeen{}});
  if (fails || goodbye != nullptr || std::holds_alternative<FailureSeen>(message)) {
    failure_unseen_.erase(source);
  }
  return actions;
}

void FailureDetector::leave(int rank) {
  roster_.leave(rank);
  if (heartbeat_) heartbeat_->forget(rank);
}

FailureDetector::Fail FailureDetector::lose(int rank, const std::string& how) {
  roster_.leave(rank);
  failed_ = true;
  return {{ErrorCode::kPeerLost, roster_.describe(rank) + " " + how + ". " + kShutDown}};
}

FailureDetector::Actions FailureDetector::find_lost(Facts& facts) {
  Actions actions;
  const int here = roster_.host_of(roster_.rank());
  int rank = 0;
  std::string how;
  while (!failed_ && facts.find_lost(&rank, &how)) {
    // A rank that has left may end its process at any time, and that is no loss.
    if (roster_.has_left(rank)) continue;
    actions.emplace_back(lose(rank, how));
    if (roster_.host_of(rank) != here) continue;
    // The ranks of other hosts may not see that a rank of this host is lost. So each rank of this host that finds the loss
    // tells them.
    Warn warn{"has lost its neighbour: " + roster_.describe(rank) + " " + how, {}};
    for (const int peer : roster_.others()) {
      if (roster_.host_of(peer) != here) warn.ranks.push_back(peer);
    }
    actions.emplace_back(std::move(warn));
  }
  return actions;
}

// --- hosts ------------------------------------------------------------------------------------------------------------

FailureDetector::Actions FailureDetector::keep_in_touch(Time now, Facts& facts) {
  Actions actions;
  if (!heartbeat_) return actions;
  for (int peer = 0; peer < roster_.size(); ++peer) {
    std::uint64_t& before = received_[static_cast<std::size_t>(peer)];
    // Any message of any rank shows that the rank's host is alive, not only a heartbeat of the leader.
    const std::uint64_t received = facts.received_from(peer);
    if (received != before) heartbeat_->heard(roster_.host_of(peer), now);
    before = received;
  }
  const Heartbeat::Actions due = heartbeat_->tick(now);
  for (const int leader : due.send) actions.emplace_back(Send{leader, Alive{}});
  for (const int host : due.quiet) {
    const std::string seconds = base::to_text(limits_.silence / Heartbeat::kQuietDivisor);
    actions.emplace_back(Log{
        base::LogLevel::kWarning,
        "nothing has come from the host of " + ranks_of(host) + " for " + seconds +
            " s. If it stays silent for " + base::to_text(limits_.silence) +
            " s in all (HVDLITE_PEER_TIMEOUT), it counts as lost; otherwise the job continues"});
  }
  // Several hosts may be silent. The cause names only one of them, because only the first failure counts.
  if (!due.silent.empty()) append(actions, lose_host(due.silent.front()));
  return actions;
}

std::string FailureDetector::ranks_of(int host) const {
  std::string ranks;
  for (int peer = 0; peer < roster_.size(); ++peer) {
    if (roster_.host_of(peer) != host) continue;
    ranks += (ranks.empty() ? "" : ", ") + roster_.describe(peer);
  }
  return ranks;
}

std::string FailureDetector::silent_for(double seconds) const {
  std::string ranks;
  if (!heartbeat_) return ranks;
  for (const int host : heartbeat_->silent_for(base::from_seconds(seconds))) {
    ranks += (ranks.empty() ? "" : ", ") + ranks_of(host);
  }
  return ranks;
}

FailureDetector::Actions FailureDetector::lose_host(int host) {
  const std::string cause = "has heard nothing for " + base::to_text(limits_.silence) +
                            " s (HVDLITE_PEER_TIMEOUT) from the host of " + ranks_of(host) + ": " +
                            kSilentHost;
  for (int peer = 0; peer < roster_.size(); ++peer) {
    // These ranks then count as left, and give_up() announces nothing to them: a message to a host that does not answer may
    // never leave this rank.
    if (roster_.host_of(peer) == host) roster_.leave(peer);
  }
  return give_up(ErrorCode::kPeerLost, cause);
}

void FailureDetector::add_to(base::Hasher& hasher) const {
  roster_.add_to(hasher);
  hasher.add(failed_ ? 1 : 0);
  add_ranks(hasher, failure_unseen_);
}

}  // namespace hvdlite::engine
