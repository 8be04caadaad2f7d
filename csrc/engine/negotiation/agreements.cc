// Negotiation in shared memory (the rest of Cycle is cycle.cc): what this rank does with the ledger of a process set. ledger.h
// explains the protocol.

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/cycle.h"
#include "engine/negotiation/fusion_planner.h"
#include "kernels/kernels.h"

namespace hvdlite::engine {

using base::Clock;
using base::Status;

namespace {

// How often to read the log and lock again, when it grows in between.
constexpr int kRounds = 4;
// A ledger stays closed while the coordinator counts more requests than that.
constexpr std::size_t kMostOpenRequests = 1024;

// Some milliseconds for the lock of a ledger that is closed for good: time enough for who holds it to get a processor.
constexpr int kTriesToAbandon = 20 * Ledger::kTries;

// The recorder and the counters are told of inline payloads above this size only: for smaller ones that would take longer than
// the operation itself.
constexpr std::size_t kTinyBytes = 64;

// May its payload ride with the announcement, if nothing else is under way?
bool may_ride(const ProcessSet& set, const Request& request) {
  const std::size_t bytes = request.bytes();
  return request.kind == base::OpKind::kAllreduce && !request.absent &&
         request.op != base::ReduceOp::kAdasum && !request.on_gpu() && request.arena == 0 &&
         bytes > 0 && bytes <= set.shared.channel->riding_bytes();
}

std::vector<std::uint64_t> keys_of(const std::vector<RequestPtr>& requests) {
  std::vector<std::uint64_t> keys;
  for (const RequestPtr& request : requests) Accord::add_keys(*request, keys);
  return keys;
}

}  // namespace

bool Cycle::agree(ProcessSet& set) {
  Accord& accord = *set.accord;
  accord.try_again = false;
  if (!accord.ledger().exists()) return accord.joins ? announce_join(set) : open_ledger(set);
  bool moved = read_ledger(set);
  if (set.coordinator) moved = keep_ledger(set) || moved;
  if (accord.joins) return announce_join(set) || moved;
  if (accord.has_waiting()) moved = announce_in_ledger(set) || moved;
  return moved;
}

// The coordinator must count what this rank asked for before it counts its join, or it would do that without this rank. So all
// of it goes by message, and what is in the ledger is taken out: the ledger is closed, as by a rank that leaves.
bool Cycle::announce_join(ProcessSet& set) {
  const SetId id = set.id;
  Accord& accord = *set.accord;
  if (accord.has_announced()) {
    if (!close_up_to_date(set)) return false;
    read_ledger(set);
    if (find_set(id) == nullptr) return true;
    accord.try_again = accord.has_announced();
    if (accord.try_again) return false;
  }
  go_by_message(set, accord.take_all());
  set.to_announce.emplace_back(kJoinName);
  accord.joins = false;
  return true;
}

// A ledger begins when the last users of its memory have left. Before, everything goes through messages.
bool Cycle::open_ledger(ProcessSet& set) {
  Accord& accord = *set.accord;
  if (!set.shared.channel->is_free()) return go_by_message(set, accord.take_all());
  if (set.coordinator) {
    accord.ledger().create(set.coordinator->sequence(), keys_of(set.coordinator->open()));
    wake_members(set);
    return true;
  }
  accord.try_again = accord.has_waiting();  // the coordinator is about to do so
  return false;
}

bool Cycle::go_by_message(ProcessSet& set, std::vector<Entry> entries) {
  for (Entry& entry : entries) await_decision(set, std::move(entry));
  return !entries.empty();
}

void Cycle::await_decision(ProcessSet& set, Entry entry) {
  const std::string& name = entry.request->name;
  set.to_announce.push_back(name);
  set.pending.emplace(name, Pending{std::move(entry)});
}

// Locks the ledger when this rank has read all of it, so that it may announce.
bool Cycle::lock_up_to_date(ProcessSet& set) {
  Ledger& ledger = set.accord->ledger();
  for (int round = 0; round < kRounds; ++round) {
    if (!ledger.try_lock()) break;
    if (ledger.up_to_date()) return true;
    ledger.unlock();
    const SetId id = set.id;
    read_ledger(set);
    if (find_set(id) == nullptr) return false;  // what was read removed the set
  }
  set.accord->try_again = true;
  return false;
}

// Closes the ledger when this rank has read all of it. False if that has to be tried again.
bool Cycle::close_up_to_date(ProcessSet& set) {
  if (!lock_up_to_date(set)) return false;
  Ledger& ledger = set.accord->ledger();
  if (ledger.has_room(1)) ledger.close();
  const bool closed = !ledger.is_open();
  ledger.unlock();
  wake_members(set);
  if (!closed) set.accord->try_again = true;
  return closed;
}

bool Cycle::announce_in_ledger(ProcessSet& set) {
  const SetId id = set.id;
  const bool rides = put_payload(set);
  static_cast<void>(shared_.usage.now());  // so that it is not read with the lock
  if (!lock_up_to_date(set)) return false;
  Accord& accord = *set.accord;
  std::vector<Entry> by_message;
  try {
    accord.try_again = !accord.announce(by_message, rides, shared_.usage);
  } catch (const base::Error& error) {
    finish(by_message, {error.code(), error.what()});  // no table holds them
    throw;
  }
  const bool agreed = accord.ledger().appended();
  accord.ledger().unlock();
  go_by_message(set, std::move(by_message));
  if (agreed) {
    wake_members(set);
    read_ledger(set);
  }
  return find_set(id) != nullptr;
}

// Puts the payload of what is about to be announced where the others will look for it, if it is small and alone.
bool Cycle::put_payload(ProcessSet& set) {
  Accord& accord = *set.accord;
  const Entry* entry = may_ride_ ? accord.only_one() : nullptr;
  if (entry == nullptr) return false;
  const Request& request = *entry->request;
  if (!may_ride(set, request) || !accord.payload_is_free()) return false;
  std::memcpy(set.shared.channel->riding(set.shared.channel->index(), accord.payload_number()),
              entry->input, request.bytes());
  return true;
}

// All members' payloads are there: adds them in rank order, as the algorithms do, and ends the operation.
void Cycle::finish_riding(const ProcessSet& set, Entry& entry) {
  const Request& request = *entry.request;
  const int members = set.shared.channel->size();
  std::array<const void*, Ledger::kMaxMembers> inputs = {};
  for (int member = 0; member < members; ++member) {
    inputs[static_cast<std::size_t>(member)] =
        set.shared.channel->riding(member, set.accord->payload_number());
  }
  const bool moves = request.bytes() > kTinyBytes;
  if (moves) shared_.reached({&entry, 1}, FlightRecorder::Stage::kStarted);
  const collectives::Reduction reduction = reduction_of(request, members);
  const kernels::ReduceKernels& kernels = kernels::reduce_kernels(request.dtype, request.op, isa_);
  kernels.fold(&entry.output, 1, inputs.data(), members,
               static_cast<std::size_t>(request.elements()), reduction.prescale,
               reduction.postscale, reduction.divisor);
  entry.completion->contributors = members;
  // As if there were one member: no link had to carry it.
  shared_.usage.moves(request.kind, request.bytes(), moves ? static_cast<std::size_t>(members) : 1);
  ++shared_.counters.riding_ops;
  ++shared_.counters.fused_ops;
  ++shared_.counters.agreed_in_memory;
  finish({&entry, 1}, Status{});
}

void Cycle::wake_members(const ProcessSet& set) {
  for (const int member : *set.members) {
    if (member != transport_.rank()) transport_.ring(member);
  }
}

// The coordinator's part: keeps apart what is counted in messages, closes the ledger when it must, and opens it again.
bool Cycle::keep_ledger(ProcessSet& set) {
  Accord& accord = *set.accord;
  Ledger& ledger = accord.ledger();
  const bool closed_by_need = set.coordinator->needs_messages() || !accord.verdicts.empty();
  const bool reopen = !ledger.is_open() && !closed_by_need && !accord.to_close;
  if (accord.to_divert.empty() && !accord.to_close && !reopen) return false;
  std::vector<std::uint64_t> open_keys;
  if (reopen) {
    const std::vector<RequestPtr> open = set.coordinator->open();
    if (open.size() > kMostOpenRequests) return false;
    open_keys = keys_of(open);
  }
  if (!ledger.try_lock()) {
    accord.try_again = true;
    return false;
  }
  if (accord.to_close && ledger.has_room(1)) {
    ledger.close();
    accord.to_close = false;
    accord.to_divert.clear();
  }
  while (!accord.to_divert.empty() && ledger.has_room(1)) {
    ledger.divert(accord.to_divert.back());
    accord.to_divert.pop_back();
  }
  if (reopen) ledger.reopen(open_keys);
  accord.try_again = accord.to_close || !accord.to_divert.empty();
  const bool appended = ledger.appended();
  ledger.unlock();
  if (appended) wake_members(set);
  return true;
}

// Does what the log says, as far as it can be done.
bool Cycle::read_ledger(ProcessSet& set) {
  std::vector<Entry> taken;
  try {
    return read_ledger(set, taken);
  } catch (const base::Error& error) {
    // No table holds them any more, and their callers would wait for ever.
    finish(taken, {error.code(), error.what()});
    throw;
  }
}

// taken: entries that are agreed and not carried out yet.
bool Cycle::read_ledger(ProcessSet& set, std::vector<Entry>& taken) {
  const SetId id = set.id;
  Accord& accord = *set.accord;
  Ledger& ledger = accord.ledger();
  bool moved = false;
  std::vector<Agreed> agreed;
  while (ledger.has_news() && set.seen >= ledger.first_sequence()) {
    const Ledger::Entry entry = ledger.front();
    if (entry.kind == Ledger::Kind::kList) {
      if (accord.lists.empty()) break;  // the message is on its way
      HVD_CHECK(agreed.empty() && entry.key == set.seen + 1);
      const ResponseList list = std::move(accord.lists.front());
      accord.lists.pop_front();
      ledger.pop();
      follow(set, list);
      if (find_set(id) == nullptr) return true;  // the list removed it
      moved = true;
      continue;
    }
    moved = true;
    if (entry.rode != 0) {
      HVD_CHECK(agreed.empty());
      taken = accord.take(entry.key);
      // Nothing is left of it here if this rank has learned of a failure, which ended all it had, before it came to read this.
      if (!taken.empty()) {
        HVD_CHECK(taken.size() == 1 && may_ride(set, *taken.front().request));
        came_last(set, entry.by, 1);
        finish_riding(set, taken.front());
        taken.clear();
      }
      ledger.pop();
      accord.payload_was_read();
      continue;
    }
    ledger.pop();
    switch (entry.kind) {
      case Ledger::Kind::kComplete:
        take_agreed(set, entry, agreed, taken);
        break;
      case Ledger::Kind::kDiverted:
        go_by_message(set, accord.take(entry.key));
        break;
      case Ledger::Kind::kClosed:
        go_by_message(set, accord.take_all());
        ++accord.closings;
        accord.tells_closing = !membership_.said_goodbye();
        break;
      case Ledger::Kind::kList:
        break;
    }
    if (entry.last != 0) {
      fuse_and_execute(set, std::exchange(agreed, {}), std::exchange(taken, {}));
    }
  }
  HVD_CHECK(agreed.empty());
  return moved;
}

void Cycle::take_agreed(ProcessSet& set, const Ledger::Entry& entry, std::vector<Agreed>& agreed,
                        std::vector<Entry>& taken) {
  std::vector<Entry> unit = set.accord->take(entry.key);
  came_last(set, entry.by, unit.size());
  for (Entry& mine : unit) {
    if (mine.request->kind == base::OpKind::kBarrier && agreement_is_barrier_) {
      ++shared_.counters.agreed_in_memory;
      finish({&mine, 1}, Status{});
      continue;
    }
    agreed.push_back(agreed_in_ledger(set, mine.request, entry.contributors));
    taken.push_back(std::move(mine));
  }
}

// What the coordinator would have answered to so many equal requests. All members of a group have the same absent ones.
Agreed Cycle::agreed_in_ledger(const ProcessSet& set, const RequestPtr& request, int contributors) {
  const auto members = static_cast<int>(set.members->size());
  return {request, request->in_group() ? (request->absent ? 0 : members) : contributors};
}

void Cycle::fuse_and_execute(ProcessSet& set, const std::vector<Agreed>& agreed,
                             std::vector<Entry> entries) {
  shared_.counters.agreed_in_memory += static_cast<std::int64_t>(agreed.size());
  shared_.reached(entries, FlightRecorder::Stage::kAgreed);
  for (const std::vector<std::uint32_t>& places : plan_fusion(
           agreed, shared_.config.fusion_threshold, static_cast<int>(set.members->size()))) {
    FusedOp fused;
    std::vector<Entry> mine;
    fused.parts.reserve(places.size());
    mine.reserve(places.size());
    for (const std::uint32_t place : places) {
      fused.parts.push_back(agreed[place]);
      mine.push_back(std::move(entries[place]));
    }
    execute(set, std::move(fused), std::move(mine));
  }
}

// The coordinator fails what it knows of. So the ledger is closed first, and what was in it comes in messages.
void Cycle::defer_verdict(ProcessSet& set, Verdict message) {
  set.accord->to_close = true;
  set.accord->verdicts.push_back(std::move(message));
}

void Cycle::carry_out_verdicts(ProcessSet& set) {
  Accord& accord = *set.accord;
  Ledger& ledger = accord.ledger();
  if (accord.verdicts.empty() || accord.to_close || ledger.is_open() || ledger.has_news()) return;
  for (std::size_t member = 0; member < set.members->size(); ++member) {
    const bool there = !membership_.roster().has_left((*set.members)[member]);
    if (there && accord.closings_of[member] < accord.closings) return;
  }
  for (const Verdict& verdict : std::exchange(accord.verdicts, {})) {
    std::vector<std::string> names = verdict.names;  // but for what has ended meanwhile
    std::erase_if(names, [&](const std::string& name) { return !set.coordinator->knows(name); });
    set.coordinator->fail(names, {base::ErrorCode::kTimeout, verdict.text});
  }
}

// Before this rank says goodbye: nothing that it has announced may be agreed any more, and what was is carried out.
bool Cycle::leave_ledgers() {
  bool all = true;
  for_each_set([&](ProcessSet& set) {
    if (!set.accord || !set.accord->ledger().exists()) return;
    all = close_up_to_date(set) && all;
  });
  return all;
}

// As this rank fails: what it has announced and its users are told has failed shall not be agreed by a rank that comes later. It
// follows the log no more, so it need not have read it; if another rank has stopped or died with the lock, it stays at the attempt.
void Cycle::abandon_ledgers() {
  for (auto& [id, set] : sets_) {
    if (!set->accord || !set->accord->ledger().exists()) continue;
    Ledger& ledger = set->accord->ledger();
    if (!ledger.try_lock(kTriesToAbandon)) continue;
    if (ledger.has_room(1)) ledger.close();
    ledger.unlock();
    wake_members(*set);
  }
}

}  // namespace hvdlite::engine
