#include "engine/membership/membership.h"

#include "base/text.h"
#include "engine/model/hashing.h"
#include "engine/model/text.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::Status;

namespace {

constexpr base::microseconds kLookInterval{20'000};

// The leaders of the other hosts; none for a rank that leads none itself.
std::vector<int> other_leaders(const Roster& roster) {
  std::vector<int> leaders;
  if (roster.host_of(roster.rank()) != roster.rank()) return leaders;
  for (const int rank : roster.others()) {
    if (roster.host_of(rank) == rank) leaders.push_back(rank);
  }
  return leaders;
}

}  // namespace

Membership::Membership(Roster roster, const Limits& limits, Time now)
    : roster_(std::move(roster)), limits_(limits) {
  const base::microseconds timeout = base::from_seconds(limits.peer);
  const std::vector<int> leaders = other_leaders(roster_);
  if (timeout.count() > 0 && !leaders.empty()) {
    received_.resize(static_cast<std::size_t>(roster_.size()));
    heartbeat_.emplace(leaders, timeout, now);
  }
  if (limits.stall.least() > 0 && roster_.size() > 1) {
    inspector_.emplace(limits.stall, roster_.rank());
  }
  if (roster_.rank() == 0) detector_.emplace(base::from_seconds(limits.deadlock / 2));
}

// --- endings ----------------------------------------------------------------------------------------------------------

std::string Membership::me(const std::string& what) const {
  return roster_.describe(roster_.rank()) + " " + what + ". " + kShutDown;
}

void Membership::fail(Status why, Actions& actions) {
  failed_ = true;
  actions.emplace_back(Fail{std::move(why)});
}

Membership::Actions Membership::leave(std::set<int> undecided) {
  Actions actions;
  said_goodbye_ = true;
  goodbye_unseen_ = std::move(undecided);
  for (const int peer : roster_.others()) {
    actions.emplace_back(Send{peer, Goodbye{goodbye_unseen_.contains(peer)}});
  }
  return actions;
}

Membership::Actions Membership::hear(int source, Goodbye message, Time, Facts&) {
  Actions actions;
  roster_.leave(source);
  if (heartbeat_) heartbeat_->forget(source);
  if (detector_) detector_->report(source, BlockedReport{});
  actions.emplace_back(
      Left{source,
           {ErrorCode::kAborted, roster_.describe(source) +
                                     " has left: its program ended or called shutdown(), and it "
                                     "takes part in nothing more. " +
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

// Its lists came before this: what it has not decided with this rank by now it never will.
void Membership::goodbye_was_seen(int coordinator, Actions& actions) {
  if (goodbye_unseen_.erase(coordinator) > 0) actions.emplace_back(Undecided{coordinator});
}

Membership::Actions Membership::raise(const std::string& cause) {
  for (const int peer : roster_.others()) failure_unseen_.insert(peer);
  failed_ = true;
  Actions actions;
  actions.emplace_back(Announce{cause, roster_.others()});
  actions.emplace_back(Fail{{ErrorCode::kAborted, me(cause)}, /*told=*/true});
  return actions;
}

Membership::Actions Membership::fail(ErrorCode code, const std::string& text) {
  Actions actions;
  actions.emplace_back(Announce{"failed: " + text, roster_.others()});
  fail({code, me("failed: " + text)}, actions);
  return actions;
}

Membership::Actions Membership::hear(int source, Failure message, Time, Facts&) {
  Actions actions;
  lose(source, message.cause, actions);
  actions.emplace_back(Send{source, FailureSeen{}});
  return actions;
}

// Only who has failed is told so, and then hear_late takes it.
Membership::Actions Membership::hear(int, FailureSeen, Time, Facts&) { return {}; }

// A rank that has failed itself need not be told. Who leaves waits for an answer: nothing is decided here any more.
Membership::Actions Membership::hear_late(int source, const Message& message) {
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

void Membership::lose(int rank, const std::string& how, Actions& actions) {
  roster_.leave(rank);
  fail({ErrorCode::kPeerLost, roster_.describe(rank) + " " + how + ". " + kShutDown}, actions);
}

// --- lost ranks and hosts ---------------------------------------------------------------------------------------------

bool Membership::due(Time now) const { return now - looked_at_ >= kLookInterval; }

Membership::Actions Membership::look(Time now, Facts& facts) {
  Actions actions;
  looked_at_ = now;
  find_lost(facts, actions);
  if (!failed_) keep_in_touch(now, facts, actions);
  if (!failed_) inspect_stalls(now, facts, actions);
  if (!failed_ && limits_.deadlock > 0) {
    report_if_blocked(now, facts, actions);
    look_for_deadlocks(now, facts, actions);
  }
  return actions;
}

Membership::Actions Membership::look_for_lost(Facts& facts) {
  Actions actions;
  find_lost(facts, actions);
  return actions;
}

void Membership::find_lost(Facts& facts, Actions& actions) {
  int rank = 0;
  std::string how;
  while (!failed_ && facts.find_lost(&rank, &how)) {
    if (roster_.has_left(rank)) continue;
    lose(rank, how, actions);
    warn_other_hosts(rank, how, actions);
  }
}

// What a rank's neighbours see by the memory they share nobody else sees.
void Membership::warn_other_hosts(int lost, const std::string& how, Actions& actions) {
  const int here = roster_.host_of(roster_.rank());
  if (roster_.host_of(lost) != here) return;
  Warn warn{"has lost its neighbour: " + roster_.describe(lost) + " " + how, {}};
  for (const int peer : roster_.others()) {
    if (roster_.host_of(peer) != here) warn.ranks.push_back(peer);
  }
  actions.emplace_back(std::move(warn));
}

Membership::Actions Membership::hear(int source, Alive, Time now, Facts&) {
  if (heartbeat_) heartbeat_->heard(roster_.host_of(source), now);
  return {};
}

// The leaders watch over each other for all ranks of their hosts.
void Membership::keep_in_touch(Time now, Facts& facts, Actions& actions) {
  if (!heartbeat_ || said_goodbye_) return;
  for (int peer = 0; peer < roster_.size(); ++peer) {
    std::uint64_t& before = received_[static_cast<std::size_t>(peer)];
    const std::uint64_t received = facts.received_from(peer);
    if (received != before) heartbeat_->heard(roster_.host_of(peer), now);
    before = received;
  }
  const Heartbeat::Actions due = heartbeat_->tick(now);
  for (const int leader : due.send) actions.emplace_back(Send{leader, Alive{}});
  if (!due.silent.empty()) lose_host(due.silent.front(), actions);
}

void Membership::lose_host(int host, Actions& actions) {
  std::string ranks;
  for (int peer = 0; peer < roster_.size(); ++peer) {
    if (roster_.host_of(peer) != host) continue;
    roster_.leave(peer);  // not told: it would have to be waited for
    ranks += (ranks.empty() ? "" : ", ") + roster_.describe(peer);
  }
  const std::string cause = "has heard nothing for " + base::to_text(limits_.peer) +
                            " s (HVDLITE_PEER_TIMEOUT) from the host of " + ranks +
                            ": the host is down, its link is cut, or its first rank is stopped";
  actions.emplace_back(Announce{cause, roster_.others()});
  fail({ErrorCode::kPeerLost, me(cause)}, actions);
}

// --- the state as a number --------------------------------------------------------------------------------------------

std::uint64_t Membership::digest() const {
  base::Hasher hasher;
  roster_.add_to(hasher);
  hasher.add_pair(said_goodbye_ ? 1 : 0, failed_ ? 1 : 0);
  add_ranks(hasher, failure_unseen_);
  add_ranks(hasher, goodbye_unseen_);
  add_time(hasher, looked_at_);
  if (heartbeat_) heartbeat_->add_to(hasher);
  for (const std::uint64_t count : received_) hasher.add(count);
  if (detector_) detector_->add_to(hasher);
  hasher.add_pair(blocked_.blocked ? 1 : 0, blocked_.reported ? 1 : 0);
  hasher.add(blocked_.version);
  add_time(hasher, blocked_.since);
  if (inspector_) inspector_->add_to(hasher);
  hasher.add(unanswered_.size());
  for (const Unanswered& each : unanswered_) {
    hasher.add_signed(each.rank);
    add_time(hasher, each.until);
    add_message(hasher, each.answer);
  }
  return hasher.value();
}

}  // namespace hvdlite::engine
