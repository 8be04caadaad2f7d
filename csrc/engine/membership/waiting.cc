// The part of Membership about ranks that wait: reports and verdicts of deadlocks, questions and answers about stalls. The rest
// is in membership.cc.
//
// How a rank reports that it is blocked. At each look the first line that holds decides ("blocked": all_wait() or
// callbacks_wait(), as in Membership::Blocked):
//
//    `blocked` or the version has changed    start the time anew; if this rank has reported, withdraw the report
//    not blocked, or reported already        nothing
//    blocked for less than the patience      nothing
//    blocked for the patience                report if Facts::blocked() confirms it; if not, try again at the next look
//
// So a rank that waits only briefly, as in each training step, reports nothing. Rank 0 reports to its own detector
// without a message, but it gets its probes as messages to itself.
//
// How a rank answers an Inquiry. For each operation in it:
//
//    unfinished on this rank, too              claim() decides whether the reply names it in `in_hand`
//    not submitted here, or ended here         if this rank has not joined, the reply names it in `lacks`. If this rank has
//                                              joined, the reply does not name it: collectives need no request of this rank
//
// If the asking rank also wants to know where this rank's program is, and the reply names an operation in `lacks`, the reply
// waits in unanswered_ for an answer of the watchdog thread. If there is no such thread, the reply is sent at once, without the
// place. One answer of the watchdog serves all replies that wait. If the watchdog gives no answer, each reply is sent at the
// first look after its `until`.

#include <algorithm>

#include "engine/membership/membership.h"
#include "engine/model/text.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::LogLevel;

namespace {

// While an operation whose end runs a callback is in flight, the engine cannot see whether the program waits for the operation.
// If nothing has been submitted and nothing has ended for this many times half of HVDLITE_DEADLOCK_TIMEOUT, the engine assumes
// that the program waits. With the default this is 150 seconds: a training step should not compute for so long between two of
// its gradients.
constexpr double kUnseen = 300;
// The watchdog gets this share of the time for which the asking rank waits for the reply. The rest is for the messages.
constexpr double kWatchdogShare = 0.6;

}  // namespace

bool Membership::watching() const {
  return blocked_.blocked || (detector_ && detector_->watching()) || !unanswered_.empty() ||
         (inspector_ && inspector_->asking());
}

void Membership::send(int rank, Message message, Actions& actions) const {
  if (!roster().has_left(rank)) actions.emplace_back(Send{rank, std::move(message)});
}

// --- deadlocks --------------------------------------------------------------------------------------------------------

void Membership::tell_rank_0(BlockedReport report, Actions& actions) {
  if (detector_) {  // this rank is rank 0
    detector_->report(0, std::move(report));
  } else {
    send(0, std::move(report), actions);
  }
}

void Membership::report_if_blocked(Time now, Facts& facts, Actions& actions) {
  const bool unseen = facts.callbacks_wait();
  const bool blocked = unseen || facts.all_wait();
  const std::uint64_t version = facts.version();
  if (blocked != blocked_.blocked || version != blocked_.version) {
    const bool reported = blocked_.reported;
    blocked_ = {blocked, false, version, now};
    if (!reported) return;
    // `blocked` is false in this report, so it withdraws the last one. If the rank is still blocked, it reports again after the
    // patience.
    BlockedReport over;
    over.version = version;
    tell_rank_0(std::move(over), actions);
    return;
  }
  const double patience = limits_.deadlock / 2 * (unseen ? kUnseen : 1);
  if (!blocked || blocked_.reported || base::seconds_between(blocked_.since, now) < patience) {
    return;
  }
  BlockedReport found = facts.blocked();
  if (!found.blocked) return;
  blocked_.reported = true;
  tell_rank_0(std::move(found), actions);
}

void Membership::look_for_deadlocks(Time now, Actions& actions) {
  if (!detector_ || !detector_->watching()) return;
  DeadlockDetector::Actions found = detector_->tick(now, roster());
  for (const int rank : found.probe) send(rank, Probe{found.number}, actions);
  for (auto& [rank, verdict] : found.verdicts) send(rank, std::move(verdict), actions);
}

Membership::Actions Membership::hear(int source, BlockedReport message, Time, Facts&) {
  if (detector_) detector_->report(source, std::move(message));
  return {};
}

Membership::Actions Membership::hear(int source, Probe message, Time, Facts& facts) {
  HVD_CHECK(source == 0);
  Actions actions;
  // Asks the facts anew, and answers the probe with a new report, which replaces this rank's last one. If this rank has gone
  // on since its last report, the answer says "not blocked" or has another version.
  BlockedReport still = facts.blocked();
  still.probe = message.number;
  // If the answer withdraws the report, and `blocked` and the version stay the same, the next look may report again.
  blocked_.reported = still.blocked;
  tell_rank_0(std::move(still), actions);
  return actions;
}

// --- stalls -----------------------------------------------------------------------------------------------------------

std::vector<Stalled> Membership::stalled(Time now, Facts& facts) const {
  std::vector<Stalled> old;
  // A join lasts as long as the other ranks work. So the age of a join counts only from the last movement of data.
  const double idle = inspector_->still_for(now);
  facts.for_each_unfinished([&](const Request& request, std::uint64_t record, bool under_way) {
    double age = inspector_->age(record, now);
    if (request.kind == base::OpKind::kJoin) age = std::min(age, idle);
    if (age < inspector_->least_age() / 2) return;
    old.push_back({record, &request, under_way, age});
  });
  return old;
}

void Membership::inspect_stalls(Time now, Facts& facts, Actions& actions) {
  if (!unanswered_.empty()) give_answers(now, facts, actions);
  if (!inspector_ || !inspector_->due(now)) return;
  inspector_->note(now, facts.newest(), facts.activity());
  StallInspector::Actions found = inspector_->look(
      now, stalled(now, facts), roster(), [&facts](int rank) { return facts.state_of(rank); });
  for (const int rank : found.ask) send(rank, found.inquiry, actions);
  for (std::string& line : found.warnings) {
    actions.emplace_back(Log{LogLevel::kWarning, std::move(line)});
  }
  for (const std::string& line : found.news) {
    actions.emplace_back(Log{LogLevel::kInfo, "stall: " + line});
  }
  if (found.verdict.empty()) return;
  append(actions, failures_.give_up(ErrorCode::kPeerLost, found.verdict));
}

Membership::Actions Membership::hear(int source, Inquiry message, Time now, Facts& facts) {
  Actions actions;
  StallReply answer;
  answer.number = message.number;
  answer.since_exemption = facts.since_exemption(now);
  for (std::uint32_t place = 0; place < message.operations.size(); ++place) {
    const Inquiry::OperationName& asked = message.operations[place];
    bool waits = false;
    facts.for_each_unfinished([&](const Request& request, std::uint64_t, bool) {
      waits = waits || (request.set == asked.set && request.name == asked.name);
    });
    if (waits) {
      if (inspector_ && inspector_->claim(source, asked.set, message.last, now)) {
        answer.in_hand.push_back(place);
      }
    } else if (!facts.has_joined(asked.set)) {
      answer.lacks.push_back(place);
    }
  }
  const bool asks_where = message.where && !answer.lacks.empty();
  if (asks_where && facts.ask_program()) {
    const Time until = now + base::from_seconds(message.patience * kWatchdogShare);
    unanswered_.push_back({source, until, std::move(answer)});
  } else {
    send(source, std::move(answer), actions);
  }
  return actions;
}

Membership::Actions Membership::hear(int source, StallReply message, Time, Facts&) {
  if (inspector_) inspector_->hear(source, std::move(message));
  return {};
}

void Membership::give_answers(Time now, Facts& facts, Actions& actions) {
  const std::optional<std::string> where = facts.take_answer();
  std::erase_if(unanswered_, [&](Unanswered& each) {
    if (!where && now < each.until) return false;
    each.answer.text =
        where ? where->substr(0, StallReply::kMostText)
              : "its place in the program is unknown: native code probably holds Python's GIL";
    send(each.rank, std::move(each.answer), actions);
    return true;
  });
}

}  // namespace hvdlite::engine
