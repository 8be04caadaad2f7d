// Over 400 lines, because nearly all functions here read or change the one state of a copy.
//
// The way of a message, here and on every other member:
//
//    try_announce, try_close, try_list, try_keep, acknowledge
//       │
//       ▼
//     send ──► tell_ ──► hear, on each other member: checks the message
//       │                  │
//       ▼                  ▼
//     take               take       puts the message into waiting_, at its place (stamp, member)
//       │                  │
//       ▼                  ▼
//     advance            advance    takes it out when no message of an earlier place can arrive any more
//       │                  │
//       ▼                  ▼
//     carry_out          carry_out  makes its steps: changes cells_, appends to log_; this member reads log_ with front and pop
//
// A member's own steps (left column) also wait for the earlier steps of the others. So all members make the same steps in one
// order until they leave. A member that has left makes waiting steps at once, and ignores announcements.
//
//    table        has                                          an element leaves
//    waiting_     messages whose steps are not made            when all members but its sender have passed its place
//                                                              (has_passed), and no earlier message is there
//    cells_       units that some members have announced,      when all have announced the unit, when a list decides the key,
//                 and diverted keys                            or at a closing
//    log_         entries that this member has not read        in pop
//    payloads_    those of the prepared units in log_          in pop, with the unit's entry
//    excepted_    of each key the number of its last           when each member that has not left has sent a message after
//                 exception (a diversion or a decision)        reading the exception, and the steps of this message are made
//
// An example of an acknowledgement. So far the last stamp of each of the three members is 4. Members 0 and 2 announce x (stamp
// 5). Member 1 announces y (stamp 5) and then x (stamp 6). All do so before they hear of the others. When all these messages
// have arrived:
//
//    place     step           smallest stamps that a copy needs for the step       does it have them?
//    (5, 0)    announce x     4 of member 1, 4 of member 2                         yes
//    (5, 1)    announce y     5 of member 0, 4 of member 2                         yes
//    (5, 2)    announce x     5 of member 0, 5 of member 1                         yes
//    (6, 1)    announce x     6 of member 0, 5 of member 2                         no: the last one of member 0 is 5
//
// The last step would complete x. So member 0 holds up the others. If it has nothing to announce, it sends an acknowledgement
// with stamp 6. Member 2 need not send one: its next message has stamp 6 or more, and (6, 2) comes after (6, 1).
//
// Why an announcement may be void (is_void): member 2 announces z, and a list that fails z comes before this announcement in
// the order. Member 2 had not read the list. When it follows the list, it ends its own unit z. If its announcement counted,
// there would be a cell for a unit that no longer exists, and the next operation with the name z would find that cell.
#include "engine/negotiation/replicated_ledger.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/error.h"
#include "engine/model/hashing.h"

namespace hvdlite::engine {

namespace {

[[noreturn]] void wrong(const char* what) {
  throw base::Error(base::ErrorCode::kInternal, std::string("it ") + what);
}

// For announce(): perhaps the wrong step has waited in this copy. So its sender is not always the member whose message has just
// arrived, and the text names the sender.
[[noreturn]] void wrong(int member, const SetId& set, const char* what) {
  throw base::Error(base::ErrorCode::kInternal, "member " + std::to_string(member) +
                                                    " of process set " + std::to_string(set.id) +
                                                    " " + what);
}

LedgerSteps::Step announcement_of(const Agreement::Unit& unit) {
  return {.kind = LedgerSteps::Kind::kAnnounce,
          .absent = unit.absent,
          .prepared = unit.prepared,
          .key = unit.key,
          .content = unit.content};
}

}  // namespace

ReplicatedLedger::ReplicatedLedger(SetId set, int members, int index, Tell tell)
    : set_(set),
      index_(index),
      tell_(std::move(tell)),
      members_(static_cast<std::size_t>(members)) {
  HVD_CHECK(members > 1 && members <= kMaxMembers && index < members);
}

// --- the log ----------------------------------------------------------------------------------------------------------

void ReplicatedLedger::pop() {
  const LogEntry entry = log_.front();
  log_.pop_front();
  if (entry.kind != Kind::kComplete) {
    // All copies number the exceptions 1, 2, 3, ... in the order of the log. So read_ is now the number of this one.
    ++read_;
    changed_ = true;
  }
  // Any member may have asked for the closing. After it, no unit that this member has announced until now becomes complete: the
  // closing has emptied the table, and it makes void the announcements that still wait.
  if (entry.kind == Kind::kClosed) {
    closing_read_ = read_;
    is_silent_ = true;
    closing_ = false;
  }
  if (entry.prepared == 0) return;
  // payloads_ has one element for each prepared unit in log_, in the same order.
  taken_ = std::move(payloads_.front());
  payloads_.pop_front();
}

// --- this member's steps ----------------------------------------------------------------------------------------------

Agreement::Step ReplicatedLedger::try_announce(std::span<Unit> units) {
  if (has_news()) return Step::kUnread;
  // If this member has asked for a closing and has not read it, an announcement sent now would come after it, and be void.
  if (closing_ || has_left_) return Step::kRefused;
  LedgerSteps together;
  for (Unit& unit : units) {
    const auto cell = cells_.find(unit.key);
    // This is decided from the copy as it is now. If a step that still waits diverts the key or closes the ledger, this member
    // takes the unit back when it reads that in the log.
    unit.by_message = !open_ || (cell != cells_.end() && cell->second.diverted);
    if (unit.by_message) continue;
    is_silent_ = false;
    if (!unit.prepared) together.steps.push_back(announcement_of(unit));
  }
  const auto travels = [](const Unit& unit) { return unit.prepared && !unit.by_message; };
  auto following = static_cast<std::uint64_t>(std::ranges::count_if(units, travels));
  // The units without a payload go first: they need not wait until the payloads have been sent.
  if (!together.steps.empty()) send(std::move(together), {}, following);
  // A message carries the payload of one unit. Between two of these messages the log may grow. This does no harm: if the log
  // gets an exception that concerns one of the next units, the announcement of that unit is void.
  for (const Unit& unit : units) {
    if (travels(unit)) send({.steps = {announcement_of(unit)}}, unit.payload, --following);
  }
  return Step::kDone;
}

Agreement::Step ReplicatedLedger::try_close() {
  if (has_news()) return Step::kUnread;
  // This member needs a closing after its last announcement. If the ledger is open, this member also needs one after its last
  // list: members need not report that they have read a list in an open ledger (acknowledge), so without a closing this member
  // could wait for ever.
  if (!is_silent_ || (open_ && own_list_ > closing_read_)) {
    if (!std::exchange(closing_, true)) send({.steps = {{.kind = LedgerSteps::Kind::kClose}}});
    // If the closing waits for no other member, the copy has made it at once.
    return has_news() ? Step::kUnread : Step::kRefused;
  }
  // A list that still waits has no number in own_list_ yet. So this member first waits until all its steps are made.
  const bool mine_are_made = std::ranges::none_of(waiting_, [&](const auto& item) {
    return item.first.second == index_ && !item.second.message.steps.empty();
  });
  const bool done = mine_are_made && have_all_read(std::max(closing_read_, own_list_));
  return done ? Step::kDone : Step::kRefused;
}

Agreement::Step ReplicatedLedger::try_list(std::uint64_t number,
                                           std::span<const std::uint64_t> decided) {
  HVD_CHECK(!has_left_);
  // The coordinator's own rank, too, follows the list only when its copy has made this step and it reads the entry in the log.
  send({.steps = {{.kind = LedgerSteps::Kind::kList,
                   .key = number,
                   .keys = {decided.begin(), decided.end()}}}});
  return Step::kDone;
}

Agreement::Step ReplicatedLedger::try_keep(Upkeep& upkeep) {
  if (has_left_) return Step::kRefused;
  LedgerSteps message;
  if (std::exchange(upkeep.close, false)) {
    message.steps.push_back({.kind = LedgerSteps::Kind::kClose});
    upkeep.divert.clear();
  }
  if (!upkeep.divert.empty()) {
    message.steps.push_back(
        {.kind = LedgerSteps::Kind::kDivert, .keys = std::exchange(upkeep.divert, {})});
  }
  // The caller may ask for the reopening in each pass until the copy is open. A message is sent only the first time.
  if (std::exchange(upkeep.reopen, false) && !reopening_) {
    reopening_ = true;
    message.steps.push_back({.kind = LedgerSteps::Kind::kReopen, .keys = upkeep.counted});
  }
  if (message.steps.empty()) return Step::kRefused;  // the reopening has been sent before
  send(std::move(message));
  return Step::kDone;
}

bool ReplicatedLedger::acknowledge() {
  if (has_left_ || !std::exchange(changed_, false)) return false;
  // Reports a closing at once, and every exception while the ledger is closed: try_close() of another member may wait for that.
  const bool must_tell = read_ > me().told && (!open_ || closing_read_ > me().told);
  if (!must_tell && !holds_up_others()) return false;
  send({});
  return true;
}

void ReplicatedLedger::send(LedgerSteps message, const InlinePayload& payload,
                            std::uint64_t following) {
  message.set = set_;
  // Lamport's clock would take highest_ + 1. But if this member has just heard a step with the stamp highest_, its own step
  // would then have a later stamp, and perhaps have to wait until the sender of that step sends one more message. With highest_
  // itself its own step need not wait for that sender. Of several messages in a row the last one gets highest_: if highest_ is
  // 9 and this member's last stamp is 5, three messages get 7, 8 and 9. For the common order it is enough that the stamps of
  // each member grow (has_passed).
  message.stamp = std::max(me().stamp + 1, highest_ - std::min(highest_, following));
  message.exceptions = read_;
  const auto add_part = [&](int member) {
    const std::span<const std::byte> part = payload.part(member);
    message.payload.assign(part.begin(), part.end());
  };
  for (int member = 0; member < static_cast<int>(members_.size()); ++member) {
    if (member == index_ || members_[static_cast<std::size_t>(member)].is_gone) continue;
    add_part(member);
    tell_(member, message);
  }
  add_part(index_);
  take(index_, std::move(message));
}

// --- messages of the others -------------------------------------------------------------------------------------------

void ReplicatedLedger::hear(int member, LedgerSteps message) {
  const MemberState& sender = members_.at(static_cast<std::size_t>(member));
  // These checks come before the message changes anything. The messages of one member arrive in the order in which it sent
  // them. So its stamps grow, and the number of exceptions that it has read never becomes smaller.
  if (member == index_ || sender.is_gone) wrong("makes steps in a ledger that it has left");
  if (message.stamp <= sender.stamp || message.exceptions < sender.told) {
    wrong("makes steps in a ledger out of their order");
  }
  for (const LedgerSteps::Step& step : message.steps) {
    const bool by_all =
        step.kind == LedgerSteps::Kind::kAnnounce || step.kind == LedgerSteps::Kind::kClose;
    if (!by_all && member != 0) wrong("makes a step that only the coordinator makes in a ledger");
  }
  take(member, std::move(message));
}

void ReplicatedLedger::left(int member) {
  members_[static_cast<std::size_t>(member)].is_gone = true;
  advance();
}

void ReplicatedLedger::leave() {
  has_left_ = true;
  advance();
}

void ReplicatedLedger::take(int member, LedgerSteps message) {
  MemberState& sender = members_[static_cast<std::size_t>(member)];
  const std::uint64_t stamp = message.stamp;
  sender.stamp = stamp;
  // What the sender has read counts at once, even if the steps of its message have to wait.
  sender.told = message.exceptions;
  highest_ = std::max(highest_, stamp);
  waiting_.emplace(Place{stamp, member}, HeardSteps{std::move(message), ++arrivals_});
  advance();
}

// --- all members' steps, in their order -------------------------------------------------------------------------------

// Have all messages of `member` that belong before `place` arrived? (For this rank's own index: have they been sent?)
bool ReplicatedLedger::has_passed(int member, Place place) const {
  const MemberState& other = members_[static_cast<std::size_t>(member)];
  // Each stamp of a member is greater than the one before. Of two messages with equal stamps, the one of the lower index comes
  // first. So after stamp 6, member 2 has passed (7, 1), but not (7, 3).
  return other.is_gone || other.stamp + (member > place.second ? 1 : 0) >= place.first;
}

void ReplicatedLedger::advance() {
  changed_ = true;
  while (!waiting_.empty()) {
    const Place place = waiting_.begin()->first;
    // A member that has left needs only the coordinator's lists, which arrive in their order. So it waits for no other member.
    for (int member = 0; !has_left_ && member < static_cast<int>(members_.size()); ++member) {
      if (member != place.second && !has_passed(member, place)) return;
    }
    HeardSteps heard = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    carry_out(place.second, std::move(heard));
  }
}

void ReplicatedLedger::carry_out(int member, HeardSteps heard) {
  const std::size_t before = log_.size();
  for (LedgerSteps::Step& step : heard.message.steps) {
    switch (step.kind) {
      case LedgerSteps::Kind::kAnnounce:
        announce(member, heard.message, step, heard.arrival);
        break;
      case LedgerSteps::Kind::kDivert:
        for (const std::uint64_t key : step.keys) divert(key, member);
        break;
      case LedgerSteps::Kind::kClose:
        close(member);
        break;
      case LedgerSteps::Kind::kReopen:
        // Before this step the copy is closed and its table is empty (unless this member has left). The reasons: no other step
        // opens the ledger, and the coordinator asks for a reopening only if its own copy is closed and no other reopening is
        // on its way.
        open_ = true;
        for (const std::uint64_t key : step.keys) cells_[key].diverted = true;
        if (member == index_) reopening_ = false;
        break;
      case LedgerSteps::Kind::kList:
        except(Kind::kList, step.key, member);
        if (member == index_) own_list_ = exceptions_;
        // A later announcement of such a key is void if its sender had not read the list (is_void).
        for (const std::uint64_t key : step.keys) {
          cells_.erase(key);
          excepted_[key] = exceptions_;
        }
        break;
    }
  }
  // Marks the last entry that this message has appended: operations of the same message may be fused.
  if (log_.size() > before) log_.back().last = 1;
  // The number of exceptions in a later message of this sender is the same or greater (hear).
  members_[static_cast<std::size_t>(member)].exceptions = heard.message.exceptions;
  forget_exceptions();
}

void ReplicatedLedger::announce(int member, LedgerSteps& message, LedgerSteps::Step& step,
                                std::uint64_t arrival) {
  if (has_left_ || is_void(step.key, message.exceptions)) return;
  if (!open_) wrong(member, set_, "announces an operation in a closed ledger");
  const auto [found, is_new] = cells_.try_emplace(step.key);
  AnnouncedUnit& cell = found->second;
  if (is_new) cell.content = step.content;
  if (!cell.diverted && cell.content != step.content) cell.diverted = true;
  // Appends an entry even if the key was diverted before: the sender has counted the unit as announced in the ledger, and must
  // read in the log that the unit goes by message.
  if (cell.diverted) return except(Kind::kDiverted, step.key, member);
  const std::uint32_t bit = std::uint32_t{1} << member;
  if ((cell.announced & bit) != 0) wrong(member, set_, "announces an operation twice");
  cell.announced |= bit;
  if (!step.absent) ++cell.contributors;
  cell.prepared = cell.prepared && step.prepared;
  if (step.prepared) {
    cell.payloads.resize(members_.size());
    cell.payloads[static_cast<std::size_t>(member)] = std::move(message.payload);
  }
  // AnnouncedUnit::last is for the statistics of who asked last. The order of the steps does not tell this: among equal stamps,
  // the highest index is always last. So the order of arrival at this member decides. AnnouncedUnit::last may differ between
  // the copies: no step depends on it.
  if (arrival > cell.last_arrival) {
    cell.last_arrival = arrival;
    cell.last = static_cast<std::uint8_t>(member);
  }
  if (std::popcount(cell.announced) < static_cast<int>(members_.size())) return;
  log_.push_back({.key = step.key,
                  .kind = Kind::kComplete,
                  .by = cell.last,
                  .contributors = cell.contributors,
                  .prepared = cell.prepared ? std::uint16_t{1} : std::uint16_t{0}});
  if (cell.prepared) payloads_.push_back(std::move(cell.payloads));
  cells_.erase(found);
}

void ReplicatedLedger::divert(std::uint64_t key, int by) {
  if (!open_) return;
  AnnouncedUnit& cell = cells_[key];
  // If no member has announced the key, none has to take a unit back, and the log needs no entry.
  if (cell.announced != 0 && !cell.diverted) except(Kind::kDiverted, key, by);
  cell.diverted = true;
}

void ReplicatedLedger::close(int by) {
  if (!std::exchange(open_, false)) return;
  cells_.clear();
  // excepted_ gets no elements for a closing: closed_at_ is enough, because it concerns all keys and is never forgotten.
  except(Kind::kClosed, 0, by);
  closed_at_ = exceptions_;
}

void ReplicatedLedger::except(Kind kind, std::uint64_t key, int by) {
  ++exceptions_;
  log_.push_back({.key = key, .kind = kind, .by = static_cast<std::uint8_t>(by)});
  if (kind == Kind::kDiverted) excepted_[key] = exceptions_;
}

// --- questions --------------------------------------------------------------------------------------------------------

bool ReplicatedLedger::is_void(std::uint64_t key, std::uint64_t exceptions) const {
  const auto found = excepted_.find(key);
  return exceptions < closed_at_ || (found != excepted_.end() && exceptions < found->second);
}

// Forgets exceptions that can make no announcement void any more. An exception is forgotten when each member has sent a message
// after it had read the exception, and this copy has made the steps of that message. Members that have left do not count:
// before a member leaves, all others have read a closing after which that member announces nothing (try_close). So closed_at_
// makes void those of its announcements that still wait in this copy.
void ReplicatedLedger::forget_exceptions() {
  if (excepted_.empty()) return;
  std::uint64_t least = exceptions_;
  for (const MemberState& member : members_) {
    if (!member.is_gone) least = std::min(least, member.exceptions);
  }
  std::erase_if(excepted_, [&](const auto& item) { return item.second <= least; });
}

bool ReplicatedLedger::have_all_read(std::uint64_t exceptions) const {
  return std::ranges::all_of(members_, [&](const MemberState& member) {
    return member.is_gone || member.told >= exceptions || &member == &members_[index_];
  });
}

// Does a step of another member wait for this member, and is it one of those for which replicated_ledger.h requires an
// acknowledgement? Waiting announcements count even if they will be void. So an acknowledgement may be sent that nobody needs.
bool ReplicatedLedger::holds_up_others() const {
  std::unordered_map<std::uint64_t, int> announced;
  for (const auto& [place, heard] : waiting_) {
    for (const LedgerSteps::Step& step : heard.message.steps) {
      if (step.kind == LedgerSteps::Kind::kAnnounce) ++announced[step.key];
    }
  }
  const auto matters = [&](const LedgerSteps::Step& step) {
    if (step.kind != LedgerSteps::Kind::kAnnounce) return true;
    const auto cell = cells_.find(step.key);
    if (cell == cells_.end()) {
      return announced[step.key] >= static_cast<int>(members_.size());
    }
    return cell->second.diverted || announced[step.key] + std::popcount(cell->second.announced) >=
                                        static_cast<int>(members_.size());
  };
  return std::ranges::any_of(waiting_, [&](const auto& item) {
    const auto& [place, heard] = item;
    return place.second != index_ && !has_passed(index_, place) &&
           std::ranges::any_of(heard.message.steps, matters);
  });
}

// Leaves out arrivals, AnnouncedUnit::last and LogEntry::by, which are for statistics, and payloads whose steps are made: no
// step depends on these.
void ReplicatedLedger::add_to(base::Hasher& hasher) const {
  for (const MemberState& member : members_) {
    hasher.add(member.stamp);
    hasher.add(member.told);
    hasher.add(member.exceptions);
    hasher.add(member.is_gone ? 1 : 0);
  }
  for (const auto& [place, heard] : waiting_) add_message(hasher, heard.message);
  hasher.add(open_ ? 1 : 0);
  add_table(hasher, cells_, [](base::Hasher& each, const AnnouncedUnit& cell) {
    each.add(cell.content);
    each.add_pair(static_cast<std::int32_t>(cell.announced), cell.contributors);
    each.add_pair(cell.diverted ? 1 : 0, cell.prepared ? 1 : 0);
  });
  for (const LogEntry& entry : log_) {
    hasher.add(entry.key);
    hasher.add_pair(static_cast<int>(entry.kind), 2 * entry.last + entry.prepared);
    hasher.add(entry.contributors);
  }
  add_table(hasher, excepted_, [](base::Hasher& each, std::uint64_t number) { each.add(number); });
  for (const std::uint64_t number :
       {exceptions_, closed_at_, read_, closing_read_, own_list_, highest_}) {
    hasher.add(number);
  }
  hasher.add_pair((reopening_ ? 2 : 0) + (closing_ ? 1 : 0),
                  (is_silent_ ? 4 : 0) + (has_left_ ? 2 : 0) + (changed_ ? 1 : 0));
}

}  // namespace hvdlite::engine
