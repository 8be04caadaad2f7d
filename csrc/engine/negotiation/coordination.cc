// Those functions of SetNegotiation that are for the coordinator, on the set's first member. (The other members call begin(),
// too.) set_negotiation.cc and set_port.cc have the rest.
//
// The way of a request that comes in a message, in a set whose port has begun:
//
//    hear             the Coordinator counts the request, and the request's keys go into upkeep_.divert
//    keep_port        diverts these keys at the port. So members that ask for the same operation there send messages, too
//    send_decisions   when the Coordinator has decided: the list gets its place in the port's log, the decided keys leave the
//                     port's table, and all members get the list
//
// A member that has joined or left announces nothing at the port, so no unit can become complete there. Therefore the port is
// closed, and stays closed, while there are such members (Coordinator::needs_messages).
//
// A verdict says that operations can never complete. Members may have announced some of them only at the port, and
// fail_counted() fails only operations that the Coordinator counts. So a verdict is carried out in these steps:
//
//    1  hear                 the Coordinator dooms the operations, so that it settles none of them before step 4
//    2  keep_port            closes the port, if it is open
//    3  all members          read the closing. Each sends an Announcement that says so, with what it had announced at the port
//    4  carry_out_verdicts   when each member that has not left has sent this Announcement: fails those of the operations that
//                            the Coordinator counts
//    5  keep_port            opens the port again, unless there is another reason to keep it closed
//
// While attentive_ is false, the Coordinator only waits for other ranks, and a pass calls neither keep_port nor send_decided.
// attentive_ becomes true (attend) when an Announcement, LedgerSteps or a Verdict arrives, when this rank reads a closing, and
// when a member leaves.

#include <algorithm>
#include <utility>

#include "engine/negotiation/negotiation.h"
#include "engine/negotiation/set_negotiation.h"

namespace hvdlite::engine {

using Step = Agreement::Step;

namespace {

// While the coordinator counts more names than this (Coordinator::open), a closed port stays closed. The reason: the step that
// opens the port puts the keys of all these names into the port's table.
constexpr std::size_t kMostOpenRequests = 1024;

std::vector<std::uint64_t> keys_of(const std::vector<RequestPtr>& requests) {
  std::vector<std::uint64_t> keys;
  for (const RequestPtr& request : requests) LocalUnits::add_keys(*request, keys);
  return keys;
}

}  // namespace

void SetNegotiation::hear(int source, Announcement message) {
  HVD_CHECK(coordinator_ != nullptr);
  const int member = set_.index_of(source);
  HVD_CHECK(member >= 0);
  const auto count = [&](const RequestPtr& accepted) {
    // A void announcement diverts nothing: the coordinator does not count it, so perhaps no decision would ever remove the
    // diverted key.
    if (accepted && port_) LocalUnits::add_keys(*accepted, upkeep_.divert);
  };
  for (const std::uint32_t slot : message.slots) {
    count(coordinator_->announce_slot(member, slot, message.seen));
  }
  for (RequestPtr& request : message.requests) {
    count(coordinator_->announce(member, std::move(request), message.seen));
  }
  std::uint64_t& closings = closings_of_[static_cast<std::size_t>(member)];
  closings = std::max(closings, message.closings);
  if (port_ && coordinator_->needs_messages()) upkeep_.close = true;
  attend();
}

bool SetNegotiation::send_decided() {
  carry_out_verdicts();
  const bool sent = coordinator_->has_decisions() && send_decisions();
  attentive_ = !has_nothing_left();
  return sent;
}

// Does the coordinator only wait for other ranks? While the port is closed, the answer is no, because each pass looks whether
// the port can open (keep_port). A port that has not begun counts as closed.
bool SetNegotiation::has_nothing_left() const {
  if (coordinator_->has_decisions() || !verdicts_.empty()) return false;
  return !port_ ||
         (port_->exists() && port_->is_open() && upkeep_.divert.empty() && !upkeep_.close);
}

bool SetNegotiation::send_decisions() {
  ResponseList list;
  list.set = set_.id;
  list.in_ledger = port_ && port_->exists();
  std::vector<std::uint64_t> keys;
  if (port_) {
    coordinator_->for_each_decided([&](const Request& each) { LocalUnits::add_keys(each, keys); });
  }
  if (list.in_ledger) {
    const Step step = port_->try_list(coordinator_->sequence() + 1, keys);
    // A refusal loses no decision, because collect() is called only after the port has taken the list.
    if (step == Step::kRefused) {
      try_again_ = true;
      return false;
    }
  }
  divert_no_more(std::move(keys));
  list.last = coordinator_->take_last();
  list.decisions = coordinator_->collect();
  // The others get the list before this rank begins to execute it, so that they need not wait for this rank.
  all_.tell_members(set_, list);
  if (list.in_ledger) {
    // As on every member: earlier entries of the log are executed first.
    lists_.push_back(std::move(list));
    read();
  } else {
    // Without a log, the order of the lists is the only order, on all members.
    follow(list);
  }
  return true;
}

// Only for a port in shared memory, because copies exist from the beginning. While earlier users of the memory have not left
// it, everything goes by message. When all of them have left, the coordinator's rank begins the log, and units of the other
// ranks wait for this beginning.
bool SetNegotiation::begin() {
  if (!port_->may_begin()) return await_decisions(local_units_.take_all());
  if (!coordinator_) {
    try_again_ = local_units_.waiting() > 0;
    return false;
  }
  port_->begin(coordinator_->sequence(), keys_of(coordinator_->open()));
  wake_members();
  return true;
}

// Diverts keys that the coordinator counts, closes the port when it must be closed, and opens it again when it need not be
// closed any more. Returns true if the port has taken the step. In shared memory, if the log has too little room, the step
// makes only some of these changes, or none. Then upkeep_ keeps the remaining changes for a later pass.
bool SetNegotiation::keep_port() {
  const bool closed_by_need = coordinator_->needs_messages() || !verdicts_.empty();
  upkeep_.reopen = !port_->is_open() && !closed_by_need && !upkeep_.close;
  if (upkeep_.divert.empty() && !upkeep_.close && !upkeep_.reopen) return false;
  if (upkeep_.reopen) {
    const std::vector<RequestPtr> open = coordinator_->open();
    if (open.size() > kMostOpenRequests) return false;
    upkeep_.counted = keys_of(open);
  }
  const Step step = port_->try_keep(upkeep_);
  if (step == Step::kAppended) wake_members();
  try_again_ = step == Step::kRefused || upkeep_.close || !upkeep_.divert.empty();
  return step != Step::kRefused;
}

// If the port has begun, this function is step 1 of a verdict (at the head of this file), and requests step 2. If the port has
// not begun, or if there is no port, no unit can become complete at a port, so operations fail at once:
//   - If the port has not begun, members perhaps hold some of the operations and have announced them nowhere. So all operations
//     of the verdict fail, also those that the coordinator does not count.
//   - If there is no port, the members announce all operations to the coordinator. So the coordinator fails only the operations
//     that it counts. It decided the others before the verdict arrived.
void SetNegotiation::hear(Verdict message) {
  if (!coordinator_) return;
  attend();
  if (port_ && port_->exists()) {
    upkeep_.close = true;
    coordinator_->doom(message.names);
    verdicts_.push_back(std::move(message));
  } else if (port_) {
    coordinator_->fail(message.names, {base::ErrorCode::kTimeout, message.text});
  } else {
    coordinator_->fail_counted(message.names, {base::ErrorCode::kTimeout, message.text});
  }
}

void SetNegotiation::carry_out_verdicts() {
  // closings_ counts the last closing only when this rank has read the whole log.
  if (verdicts_.empty() || upkeep_.close || port_->is_open() || port_->has_news()) return;
  for (std::size_t member = 0; member < set_.members->size(); ++member) {
    const bool there = !all_.has_left((*set_.members)[member]);
    if (there && closings_of_[member] < closings_) return;
  }
  for (const Verdict& verdict : std::exchange(verdicts_, {})) {
    coordinator_->fail_counted(verdict.names, {base::ErrorCode::kTimeout, verdict.text});
  }
}

// These keys are decided. If keep_port() diverted such a key later, the key's cell would stay in the table until the key is
// decided again or the port closes. An unnamed operation's key is never decided again.
void SetNegotiation::divert_no_more(std::vector<std::uint64_t> decided) {
  if (upkeep_.divert.empty()) return;
  std::ranges::sort(decided);
  std::erase_if(upkeep_.divert,
                [&](std::uint64_t key) { return std::ranges::binary_search(decided, key); });
}

}  // namespace hvdlite::engine
