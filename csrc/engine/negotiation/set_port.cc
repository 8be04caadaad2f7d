// Those functions of SetNegotiation by which a member uses its set's port (agreement.h). set_negotiation.cc and coordination.cc
// have the others. ledger.h and replicated_ledger.h explain the protocol.
//
// One pass at the port (agree):
//
//    read           executes what the log says. The port takes no announcement from a member that has not read the whole log
//    keep_port      only on the coordinator's rank: diverts keys, closes the port, opens it again
//    announce       announces the waiting units. If this rank joins, all its units and the join go by message instead
//    read           if this rank was the last to announce a unit, the unit is complete, and this rank executes it now
//    acknowledge    only with copies. It comes after the announcement, because an announcement tells the others the same
//    read           the message just sent can allow this rank's own copy to make further steps
//
// What an entry of the log does with this rank's units:
//
//    kComplete     the unit is executed
//    kDiverted     the unit goes to the coordinator by message
//    kClosed       all units go to the coordinator by message, also those that are not announced, and incomplete groups
//    kList n       the response list n is followed. If the list has not arrived, reading stops before this entry, because
//                  the later entries must be executed after the list
//
// The entries that one step has appended become visible together, and the last one is marked (LogEntry::last). Complete units
// are fused only with units of the same step. So it does not matter when a member reads the log: all members fuse the same
// operations. A complete unit has the same content on all members. Therefore each member takes its own request for the agreed
// one. The log entry adds the number of members with a value, and whether all have prepared the unit.
//
// No function here waits for another rank. If the port refuses a step, try_again_ is set, and a later pass tries again. Only
// abandon() does not try again.

#include <utility>

#include "engine/negotiation/fusion_planner.h"
#include "engine/negotiation/negotiation.h"
#include "engine/negotiation/set_negotiation.h"

namespace hvdlite::engine {

using base::OpKind;
using base::Status;
using Step = Agreement::Step;

namespace {

// after_reading() tries a step at most this many times, and reads the log after each try whose result is kUnread.
constexpr int kRounds = 4;

}  // namespace

// As long as the log has not begun, units wait or go by message (begin), and a join need not close the port.
bool SetNegotiation::agree() {
  try_again_ = false;
  if (!port_->exists()) return joins_ ? announce_join() : begin();
  bool moved = read();
  if (attentive_) moved = keep_port() || moved;
  if (joins_) {
    moved = announce_join() || moved;
  } else if (local_units_.waiting() > 0) {
    moved = announce_waiting() || moved;
  }
  if (!port_->acknowledge()) return moved;
  read();
  return true;
}

void SetNegotiation::hear(int source, LedgerSteps message) {
  const int member = set_.index_of(source);
  HVD_CHECK(port_ != nullptr && member >= 0);
  port_->hear(member, std::move(message));
  attend();
}

// The coordinator must count this rank's earlier requests before it counts the rank's join. So this rank closes the port, as a
// rank that leaves does. Then all entries that this rank has announced at the port go by message, before the join.
bool SetNegotiation::announce_join() {
  if (local_units_.has_announced()) {
    if (!close()) return false;
    read();
    // read() stops before the closing if a list before it has not arrived.
    try_again_ = local_units_.has_announced();
    if (try_again_) return false;
  }
  // The coordinator counts the slots of an Announcement first and then its full requests, in their order. A join has no slot,
  // and its name is the last one in to_announce_. So the coordinator counts the join after all earlier requests of this rank.
  await_decisions(local_units_.take_all());
  to_announce_.emplace_back(kJoinName);
  joins_ = false;
  return true;
}

// Makes a step that requires that this rank has read the log. Returns false if the step has to be tried again.
template <typename Try>
bool SetNegotiation::after_reading(Try try_step) {
  for (int round = 0; round < kRounds; ++round) {
    const Step step = try_step();
    if (step == Step::kAppended) wake_members();
    if (step == Step::kAppended || step == Step::kDone) return true;
    if (step == Step::kRefused) break;
    read();
  }
  try_again_ = true;
  return false;
}

bool SetNegotiation::close() {
  if (!port_ || !port_->exists()) return true;
  return after_reading([&] { return port_->try_close(); });
}

// Tries once: later passes of a rank that has failed make no steps at the port.
void SetNegotiation::abandon() {
  if (port_ && port_->exists() && port_->try_abandon() == Step::kAppended) wake_members();
}

// Prepares the waiting units for which this is possible and saves time. A prepared unit is not fused with other units.
void SetNegotiation::prepare_waiting() {
  const bool in_memory = port_->is_in_memory();
  // In the shared memory, this rank has a place for the input of only one unit that is not agreed yet.
  const bool has_place = local_units_.waiting() == 1 && !local_units_.has_announced();
  // With copies, each prepared unit travels in a message of its own. A group loses nothing by that, because it is never fused
  // with other operations. Several single operations travel together and are not prepared, so that they can be fused.
  const bool one_single = !in_memory && local_units_.waiting_singles() == 1;
  local_units_.prepare([&](std::span<const Entry> unit) -> std::optional<InlinePayload> {
    const bool may = in_memory ? has_place && unit.size() == 1
                               : one_single || !unit.front().request->group.empty();
    if (!may || (unit.size() > 1 && !is_one_operation(unit))) return std::nullopt;
    return all_.effects_.prepare(set_.id, unit);
  });
}

// Will these operations run as one FusedOp?
bool SetNegotiation::is_one_operation(std::span<const Entry> unit) const {
  std::vector<AgreedOperation> agreed;
  for (const Entry& entry : unit) agreed.push_back(agreed_at_port(entry.request, set_.size()));
  return plan_fusion(agreed, all_.settings_.fusion_threshold, set_.size()).size() == 1;
}

// Units are prepared before they are announced, because the others use this rank's prepared input as soon as all members have
// announced the unit. One step announces a limited number of units, and the next pass announces more.
bool SetNegotiation::announce_waiting() {
  prepare_waiting();
  all_.effects_.before_announcing();
  std::vector<Entry> by_message;
  const bool announced = after_reading([&] {
    return local_units_.announce(*port_, by_message, [&](const std::vector<Entry>& entries) {
      all_.effects_.announced_at_port(entries);
    });
  });
  if (!announced) return false;
  try_again_ = local_units_.waiting() > 0;
  await_decisions(std::move(by_message));
  read();
  return true;
}

// Needed only with shared memory: there no message tells the other members that the log has grown.
void SetNegotiation::wake_members() {
  for (const int member : *set_.members) {
    if (member != all_.settings_.rank) all_.effects_.ring(member);
  }
}

// Executes what the log says, as far as possible now. Returns true if there was anything.
bool SetNegotiation::read() {
  std::vector<Entry> taken;
  try {
    return read(taken);
  } catch (const base::Error& error) {
    // No table holds these entries any more. If this function did not finish them, their callers would wait for ever.
    all_.finish(taken, {error.code(), error.what()});
    throw;
  }
}

// taken: entries that are agreed and not executed yet.
bool SetNegotiation::read(std::vector<Entry>& taken) {
  bool moved = false;
  std::vector<AgreedOperation> agreed;
  // The first lists, up to first_sequence(), are not in the log. This member follows them before it reads the log.
  while (port_->has_news() && seen_ >= port_->first_sequence()) {
    const Agreement::LogEntry entry = port_->front();
    const bool alone = entry.kind == Agreement::Kind::kList || entry.prepared != 0;
    if (entry.kind == Agreement::Kind::kList && lists_.empty()) break;  // the list has not arrived
    // A list and a complete prepared unit are each the only entry of their step. So they overtake no collected operation.
    HVD_CHECK(agreed.empty() || !alone);
    // pop() comes before the execution, because take_payloads() returns the payloads of the unit that was popped last.
    port_->pop();
    moved = true;
    carry_out(entry, agreed, taken);
    if (entry.last != 0 && !agreed.empty()) {
      fuse_and_execute(std::exchange(agreed, {}), std::exchange(taken, {}));
    }
  }
  // The log never ends inside of a step.
  HVD_CHECK(agreed.empty());
  return moved;
}

// Carries out one entry of the log. A complete unit is only collected, in `agreed` and `taken`; but a prepared unit is executed
// at once, and a barrier that needs no collective ends at once.
void SetNegotiation::carry_out(const Agreement::LogEntry& entry,
                               std::vector<AgreedOperation>& agreed, std::vector<Entry>& taken) {
  switch (entry.kind) {
    case Agreement::Kind::kComplete:
      take_agreed(entry, agreed, taken);
      break;
    case Agreement::Kind::kDiverted:
      await_decisions(local_units_.take(entry.key));
      break;
    case Agreement::Kind::kClosed:
      await_decisions(local_units_.take_all());
      ++closings_;
      attend();
      // A rank that has said goodbye announces nothing more.
      tells_closing_ = !all_.said_goodbye_;
      break;
    case Agreement::Kind::kList: {
      // The coordinator's messages arrive in order, so the oldest list is the one with this number.
      HVD_CHECK(entry.key == seen_ + 1);
      const ResponseList list = std::move(lists_.front());
      lists_.pop_front();
      follow(list);
      break;
    }
  }
}

void SetNegotiation::take_agreed(const Agreement::LogEntry& entry,
                                 std::vector<AgreedOperation>& agreed, std::vector<Entry>& taken) {
  std::vector<Entry> unit = local_units_.take(entry.key);
  // This rank has failed before it read this entry, and the failure has ended the unit.
  if (unit.empty()) return;
  came_last(entry.by, unit.size());
  if (entry.prepared != 0) {
    taken = std::move(unit);
    all_.counters_.agreed_in_memory += static_cast<std::int64_t>(taken.size());
    all_.effects_.execute_prepared(set_.id, taken, port_->take_payloads());
    taken.clear();
    return;
  }
  for (Entry& mine : unit) {
    if (mine.request->kind == OpKind::kBarrier && all_.settings_.agreement_is_barrier) {
      ++all_.counters_.agreed_in_memory;
      all_.finish({&mine, 1}, Status{});
      continue;
    }
    agreed.push_back(agreed_at_port(mine.request, entry.contributors));
    taken.push_back(std::move(mine));
  }
}

// The same as the coordinator would decide. In a group the same requests are absent on all members (Unit::content), so for each
// operation either all members have a value or none has. The log entry's `contributors` does not tell which, because for a
// group it counts every member.
AgreedOperation SetNegotiation::agreed_at_port(const RequestPtr& request, int contributors) const {
  return {request, request->in_group() ? (request->absent ? 0 : set_.size()) : contributors};
}

void SetNegotiation::fuse_and_execute(std::vector<AgreedOperation> agreed,
                                      std::vector<Entry> entries) {
  all_.counters_.agreed_in_memory += static_cast<std::int64_t>(agreed.size());
  all_.effects_.reached(entries, Effects::Stage::kAgreed);
  if (agreed.size() == 1) {
    auto sizes = sizes_of_equal(*agreed.front().request, set_.size());
    return execute({std::move(agreed), std::move(sizes)}, std::move(entries));
  }
  for (const std::vector<std::uint32_t>& places :
       plan_fusion(agreed, all_.settings_.fusion_threshold, set_.size())) {
    FusedOp fused;
    fused.sizes = sizes_of_equal(*agreed[places.front()].request, set_.size());
    std::vector<Entry> mine;
    fused.parts.reserve(places.size());
    mine.reserve(places.size());
    for (const std::uint32_t place : places) {
      fused.parts.push_back(agreed[place]);
      mine.push_back(std::move(entries[place]));
    }
    execute(std::move(fused), std::move(mine));
  }
}

void SetNegotiation::catch_up() {
  if (port_ && port_->exists()) read();
}

}  // namespace hvdlite::engine
