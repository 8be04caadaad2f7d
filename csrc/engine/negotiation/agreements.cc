// SetNegotiation in memory: what this rank does through the port of a process set (the rest is set_negotiation.cc). ledger.h
// explains the protocol.

#include <utility>

#include "engine/negotiation/fusion_planner.h"
#include "engine/negotiation/negotiation.h"
#include "engine/negotiation/set_negotiation.h"

namespace hvdlite::engine {

using base::Status;
using Step = Agreement::Step;

namespace {

// How often to read the log and try again, when it grows in between.
constexpr int kRounds = 4;

}  // namespace

bool SetNegotiation::agree() {
  try_again_ = false;
  if (!port_->exists()) return joins_ ? announce_join() : begin();
  bool moved = read();
  if (coordinator_) moved = keep_port() || moved;
  if (joins_) return announce_join() || moved;
  if (accord_.has_waiting()) moved = announce_waiting() || moved;
  return moved;
}

// It begins when the last users of its memory have left. Before, everything goes through messages.
bool SetNegotiation::begin() {
  if (!port_->may_begin()) return await_decisions(accord_.take_all());
  if (coordinator_) {
    begin_port();
    return true;
  }
  try_again_ = accord_.has_waiting();  // the coordinator is about to do so
  return false;
}

// The coordinator must count what this rank asked for before it counts its join, or it would do that without this rank. So all
// of it goes by message, and what is announced in memory is taken out: the port is closed, as by a rank that leaves.
bool SetNegotiation::announce_join() {
  if (accord_.has_announced()) {
    if (!close()) return false;
    read();
    try_again_ = accord_.has_announced();
    if (try_again_) return false;
  }
  await_decisions(accord_.take_all());
  to_announce_.emplace_back(kJoinName);
  joins_ = false;
  return true;
}

// Makes a step that needs that this rank has read the log. False if that has to be tried again.
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

void SetNegotiation::abandon() {
  if (port_ && port_->exists() && port_->try_abandon() == Step::kAppended) wake_members();
}

bool SetNegotiation::announce_waiting() {
  const Entry* one = accord_.only_one();
  accord_.mark_prepared(one != nullptr && all_.effects_.prepare(set_.id, *one));
  all_.effects_.before_announcing();
  std::vector<Entry> by_message;
  const bool announced = after_reading([&] {
    return accord_.announce(*port_, by_message, [&](const std::vector<Entry>& entries) {
      all_.effects_.announced_in_memory(entries);
    });
  });
  if (!announced) return false;
  try_again_ = accord_.has_waiting();
  await_decisions(std::move(by_message));
  read();
  return true;
}

void SetNegotiation::wake_members() {
  for (const int member : *set_.members) {
    if (member != all_.settings_.rank) all_.effects_.ring(member);
  }
}

// Does what the log says, as far as it can be done.
bool SetNegotiation::read() {
  std::vector<Entry> taken;
  try {
    return read(taken);
  } catch (const base::Error& error) {
    // No table holds them any more, and their callers would wait for ever.
    all_.finish(taken, {error.code(), error.what()});
    throw;
  }
}

// taken: entries that are agreed and not carried out yet.
bool SetNegotiation::read(std::vector<Entry>& taken) {
  bool moved = false;
  std::vector<Agreed> agreed;
  while (port_->has_news() && seen_ >= port_->first_sequence()) {
    const Agreement::Entry entry = port_->front();
    const bool alone = entry.kind == Agreement::Kind::kList || entry.prepared != 0;
    if (entry.kind == Agreement::Kind::kList && lists_.empty()) break;  // it is on its way
    HVD_CHECK(agreed.empty() || !alone);
    port_->pop();
    moved = true;
    carry_out(entry, agreed, taken);
    if (entry.last != 0 && !agreed.empty()) {
      fuse_and_execute(std::exchange(agreed, {}), std::exchange(taken, {}));
    }
  }
  HVD_CHECK(agreed.empty());
  return moved;
}

void SetNegotiation::carry_out(const Agreement::Entry& entry, std::vector<Agreed>& agreed,
                               std::vector<Entry>& taken) {
  switch (entry.kind) {
    case Agreement::Kind::kComplete:
      take_agreed(entry, agreed, taken);
      break;
    case Agreement::Kind::kDiverted:
      await_decisions(accord_.take(entry.key));
      break;
    case Agreement::Kind::kClosed:
      await_decisions(accord_.take_all());
      ++closings_;
      tells_closing_ = !all_.said_goodbye_;
      break;
    case Agreement::Kind::kList: {
      HVD_CHECK(entry.key == seen_ + 1);
      const ResponseList list = std::move(lists_.front());
      lists_.pop_front();
      follow(list);
      break;
    }
  }
}

void SetNegotiation::take_agreed(const Agreement::Entry& entry, std::vector<Agreed>& agreed,
                                 std::vector<Entry>& taken) {
  std::vector<Entry> unit = accord_.take(entry.key);
  // Nothing is left of it here if this rank has learned of a failure, which ended all it had, before it came to read this.
  if (unit.empty()) return;
  came_last(entry.by, unit.size());
  if (entry.prepared != 0) {
    taken = std::move(unit);
    HVD_CHECK(taken.size() == 1);
    ++all_.counters_.agreed_in_memory;
    all_.effects_.execute_prepared(set_.id, taken.front());
    taken.clear();
    return;
  }
  for (Entry& mine : unit) {
    if (mine.request->kind == base::OpKind::kBarrier && all_.settings_.agreement_is_barrier) {
      ++all_.counters_.agreed_in_memory;
      all_.finish({&mine, 1}, Status{});
      continue;
    }
    agreed.push_back(agreed_in_memory(mine.request, entry.contributors));
    taken.push_back(std::move(mine));
  }
}

// What the coordinator would have answered to so many equal requests. All members of a group have the same absent ones.
Agreed SetNegotiation::agreed_in_memory(const RequestPtr& request, int contributors) const {
  return {request, request->in_group() ? (request->absent ? 0 : set_.size()) : contributors};
}

void SetNegotiation::fuse_and_execute(const std::vector<Agreed>& agreed,
                                      std::vector<Entry> entries) {
  all_.counters_.agreed_in_memory += static_cast<std::int64_t>(agreed.size());
  all_.effects_.reached(entries, Effects::Stage::kAgreed);
  for (const std::vector<std::uint32_t>& places :
       plan_fusion(agreed, all_.settings_.fusion_threshold, set_.size())) {
    FusedOp fused;
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
