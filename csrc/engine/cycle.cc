#include "engine/cycle.h"

#include <algorithm>
#include <numeric>

#include "engine/validate.h"

namespace hvdlite::engine {

using base::Clock;
using base::ErrorCode;
using base::LogLevel;
using base::OpKind;
using base::Status;
using Stage = FlightRecorder::Stage;

namespace {

// The text users of Horovod search their logs for.
constexpr const char* kShutDown = "Horovod has been shut down";

// Memory kept for fusion buffers, in fusion thresholds: enough for the operations usually in flight.
constexpr std::size_t kPoolThresholds = 4;

// Operations of the flight recorder that a failure prints.
constexpr std::size_t kRecordsInLog = 16;

// Ids are part of message tags, so there is a limit to how many sets live at once.
constexpr std::size_t kMaxSets = 1024;

}  // namespace

Cycle::Cycle(transport::Transport& transport, SharedState& shared, collectives::Selection selection)
    : transport_(transport),
      shared_(shared),
      executor_(
          transport, std::move(selection), kPoolThresholds * shared.config.fusion_threshold,
          [this](const Entry& entry) {
            shared_.recorder.reached(entry.completion->record, Stage::kStarted);
          },
          [this](Entry& entry, const Status& status) { finish(entry, status); }) {
  std::vector<std::int64_t> world(static_cast<std::size_t>(transport.size()));
  std::iota(world.begin(), world.end(), 0);
  create_set(world);
  if (transport.rank() == 0) {
    const auto patience = std::chrono::duration_cast<base::microseconds>(
        std::chrono::duration<double>(shared.config.deadlock_timeout / 2));
    detector_ = std::make_unique<DeadlockDetector>(
        [this](SetId id) {
          const ProcessSet* set = find_set(id);
          return set != nullptr ? *set->members : std::vector<int>{};
        },
        patience);
  }
}

bool Cycle::pass(bool flush) {
  if (shared_.failure.happened()) {
    end_all(shared_.failure.status());
    transport_.messages_flushed();  // what tells the peers is still on its way
    return false;
  }
  try {
    bool moved = receive();
    moved = announce(flush) || moved;
    moved = coordinate() || moved;
    moved = executor_.advance() || moved;
    if (transport_.activity() != seen_activity_) {
      seen_activity_ = transport_.activity();
      moved = true;
    }
    if (moved) {
      moved_at_ = Clock::now();
    }
    watch();
    shared_.counters.data_bytes_sent.store(static_cast<std::int64_t>(transport_.bytes_sent()),
                                           std::memory_order_relaxed);
    return moved;
  } catch (const base::Error& error) {
    engine_failed(error.code(), error.what());
  } catch (const std::exception& error) {
    engine_failed(ErrorCode::kInternal, std::string("hvdlite's engine failed: ") + error.what());
  }
  return true;
}

// An error below us: this rank can go on no more, and the others must not wait for it.
void Cycle::engine_failed(ErrorCode code, const std::string& text) {
  try {
    broadcast_failure("failed: " + text);
  } catch (const std::exception& error) {
    shared_.log.write(LogLevel::kError, "control",
                      std::string("could not tell the other ranks: ") + error.what());
  }
  fail_all(
      {code, transport_.describe_peer(transport_.rank()) + " failed: " + text + ". " + kShutDown});
}

Outlook Cycle::outlook() const {
  Outlook outlook;
  outlook.idle = std::chrono::duration_cast<base::microseconds>(Clock::now() - moved_at_);
  outlook.moving_data = !executor_.idle();
  for (const auto& [id, set] : sets_) {
    outlook.negotiating = outlook.negotiating || !set->pending.empty();
  }
  outlook.watching = blocked_ || (detector_ && detector_->watching());
  const auto patience =
      base::microseconds(static_cast<std::int64_t>(shared_.config.cycle_time_ms * 1000));
  if (const auto due = shared_.queue.due(patience)) {
    outlook.due = std::max(base::microseconds(1),
                           std::chrono::duration_cast<base::microseconds>(*due - Clock::now()));
  }
  return outlook;
}

// --- step 1: control messages ---------------------------------------------------------------------------------------

bool Cycle::receive() {
  bool any = false;
  int source = 0;
  std::vector<std::byte> bytes;
  while (transport_.receive_message(&source, &bytes)) {
    any = true;
    Message message = decode(bytes);
    std::visit([&](auto& content) { handle(source, content); }, message);
    if (shared_.failure.happened()) break;
  }
  return any;
}

ProcessSet* Cycle::find_set(SetId id) {
  const auto found = sets_.find(id.id);
  return found != sets_.end() && found->second->id == id ? found->second.get() : nullptr;
}

bool Cycle::keep_for_later(SetId id, int source, const Message& message) {
  if (id.epoch <= last_epoch_) return false;
  early_[id.epoch].emplace_back(source, message);
  return true;
}

void Cycle::handle(int source, Announcement& message) {
  ProcessSet* set = find_set(message.set);
  if (set == nullptr) {
    keep_for_later(message.set, source, message);
    return;
  }
  HVD_CHECK(set->coordinator != nullptr);
  const int member = set->index_of(source);
  HVD_CHECK(member >= 0);
  for (const std::uint32_t slot : message.slots) {
    set->coordinator->announce_slot(member, slot, message.seen);
  }
  for (RequestPtr& request : message.requests) {
    set->coordinator->announce(member, std::move(request), message.seen);
  }
}

void Cycle::handle(int source, ResponseList& message) {
  ProcessSet* set = find_set(message.set);
  if (set == nullptr) {
    keep_for_later(message.set, source, message);
    return;
  }
  std::vector<Decision> decisions;
  auto full = message.responses.begin();
  for (const std::int32_t slot : message.slots) {
    if (slot < 0) {
      decisions.push_back({std::make_shared<const Response>(std::move(*full++)), false});
    } else {
      Response placeholder;
      placeholder.slot = slot;
      decisions.push_back({std::make_shared<const Response>(std::move(placeholder)), true});
    }
  }
  follow(*set, decisions);
}

void Cycle::handle(int source, Failure& message) {
  peer_failed(source, message.cause);
  send(source, FailureSeen{});
}

void Cycle::handle(int source, FailureSeen&) { failure_unseen_.erase(source); }

void Cycle::handle(int source, Goodbye&) {
  left_.insert(source);
  failure_unseen_.erase(source);
  if (detector_) detector_->report(source, BlockedReport{});
  const Status why = {
      ErrorCode::kAborted,
      transport_.describe_peer(source) +
          " has left: its program ended or called shutdown(), and it takes part in nothing more. " +
          kShutDown + " on that rank"};
  for (auto& [id, set] : sets_) {
    const int member = set->index_of(source);
    if (member < 0 || !set->is_member()) continue;
    if (set->coordinator) set->coordinator->leave(member, why);
    if (set->coordinator_rank() == source) {
      set->broken = why;
      fail_pending(*set, why);
    }
  }
}

// --- step 2: what callers submitted ---------------------------------------------------------------------------------

bool Cycle::announce(bool flush) {
  const auto patience =
      base::microseconds(static_cast<std::int64_t>(shared_.config.cycle_time_ms * 1000));
  std::vector<Entry> entries = shared_.queue.take(flush, shared_.config.fusion_threshold, patience);
  for (Entry& entry : entries) admit(std::move(entry));
  bool any = !entries.empty();
  for (auto& [id, set] : sets_) {
    if (set->to_announce.empty()) continue;
    announce_pending(*set);
    any = true;
  }
  return any;
}

bool Cycle::admit(Entry entry) {
  const Request& request = *entry.request;
  ProcessSet* set = find_set(request.set);
  Status refusal;
  if (set == nullptr) {
    refusal = {ErrorCode::kInvalidArgument,
               describe(request) + ": the process set has been removed"};
  } else if (said_goodbye_) {
    refusal = {ErrorCode::kAborted, describe(request) + ": this rank has shut down. " + kShutDown};
  } else if (!set->broken.ok()) {
    refusal = {set->broken.code, describe(request) + ": " + set->broken.message};
  } else if (set->pending.contains("join")) {
    refusal = {ErrorCode::kInvalidArgument,
               describe(request) +
                   ": this rank has joined the process set and must wait for join() to return"};
  }
  if (!refusal.ok()) {
    finish(entry, refusal);
    return false;
  }
  const std::string name = request.name;
  set->pending.emplace(name, Pending{std::move(entry)});
  set->to_announce.push_back(name);
  return true;
}

void Cycle::announce_pending(ProcessSet& set) {
  Announcement message;
  message.set = set.id;
  message.seen = set.seen;
  for (const std::string& name : std::exchange(set.to_announce, {})) {
    const auto found = set.pending.find(name);
    if (found == set.pending.end()) continue;
    Pending& pending = found->second;
    pending.announced = true;
    shared_.recorder.reached(pending.entry.completion->record, Stage::kAnnounced);
    const auto slot = set.cache.find(*pending.entry.request);
    pending.by_slot = slot.has_value();
    if (slot) {
      message.slots.push_back(*slot);
    } else {
      message.requests.push_back(pending.entry.request);
    }
  }
  shared_.counters.cache_hits += static_cast<std::int64_t>(message.slots.size());
  shared_.counters.cache_misses += static_cast<std::int64_t>(message.requests.size());
  if (set.coordinator) {
    handle(transport_.rank(), message);
  } else {
    send(set.coordinator_rank(), message);
  }
}

// --- steps 3 and 4: decide, and follow what was decided -------------------------------------------------------------

bool Cycle::coordinate() {
  bool any = false;
  // Following a decision may add or remove sets, so the iteration restarts from a list of ids.
  std::vector<SetId> ids;
  for (const auto& [id, set] : sets_) {
    if (set->coordinator && set->coordinator->has_decisions()) ids.push_back(set->id);
  }
  for (const SetId id : ids) {
    ProcessSet* set = find_set(id);
    if (set == nullptr) continue;
    any = true;
    ResponseList message;
    message.set = id;
    message.decisions = set->coordinator->collect();
    for (const int member : *set->members) {
      if (member != transport_.rank() && !left_.contains(member)) send(member, message);
    }
    follow(*set, message.decisions);
  }
  return any;
}

void Cycle::follow(ProcessSet& set, const std::vector<Decision>& decisions) {
  ++set.seen;
  std::vector<ResponsePtr> responses;
  responses.reserve(decisions.size());
  for (const Decision& decision : decisions) responses.push_back(remember(set, decision));
  const SetId id = set.id;
  for (FusedOp& fused : plan_fusion(responses, shared_.config.fusion_threshold,
                                    static_cast<int>(set.members->size()))) {
    ProcessSet* still = find_set(id);
    if (still != nullptr) execute(*still, std::move(fused));
  }
}

// Keeps this rank's response cache in step with the coordinator's, and gives the full response.
ResponsePtr Cycle::remember(ProcessSet& set, const Decision& decision) {
  if (decision.hit) return set.cache.at(static_cast<std::uint32_t>(decision.response->slot));
  const Response& response = *decision.response;
  if (response.slot < 0) return decision.response;
  const auto mine = set.pending.find(response.request.name);
  const std::string lost = set.cache.put(
      static_cast<std::uint32_t>(response.slot), decision.response,
      mine != set.pending.end() && mine->second.announced ? mine->second.entry.request : nullptr);
  const auto replaced = set.pending.find(lost);
  if (!lost.empty() && replaced != set.pending.end() && replaced->second.by_slot) {
    // Our announcement by slot crossed the replacement of that slot: the coordinator ignored it.
    replaced->second.announced = false;
    replaced->second.by_slot = false;
    set.to_announce.push_back(lost);
  }
  return decision.response;
}

std::vector<Entry> Cycle::take_entries(ProcessSet& set, const FusedOp& fused) {
  std::vector<Entry> entries(fused.size());
  for (std::size_t i = 0; i < fused.size(); ++i) {
    const auto found = set.pending.find(fused[i]->request.name);
    // Not ours: this rank has joined, or an error concerns an operation it never submitted.
    if (found == set.pending.end()) continue;
    entries[i] = std::move(found->second.entry);
    set.pending.erase(found);
    shared_.recorder.reached(entries[i].completion->record, Stage::kAgreed);
  }
  return entries;
}

void Cycle::execute(ProcessSet& set, FusedOp fused) {
  std::vector<Entry> entries = take_entries(set, fused);
  const Response& first = *fused.front();
  const OpKind kind = first.request.kind;
  const bool moves_data = first.error.ok() && kind != OpKind::kJoin &&
                          kind != OpKind::kAddProcessSet && kind != OpKind::kRemoveProcessSet;
  if (moves_data) {
    ++shared_.counters.fused_ops;
    executor_.enqueue(set, std::move(fused), std::move(entries));
    return;
  }
  // These come one to a FusedOp: only allreduces without error are fused.
  if (!first.error.ok()) {
    if (entries[0].request) finish(entries[0], first.error);
  } else {
    settle_without_data(first, entries[0]);
  }
}

void Cycle::settle_without_data(const Response& response, Entry& entry) {
  const bool mine = entry.request != nullptr;
  Status status;
  if (response.request.kind == OpKind::kJoin) {
    if (mine) entry.completion->value = response.value;
  } else if (response.request.kind == OpKind::kAddProcessSet) {
    if (sets_.size() >= kMaxSets) {
      status = {ErrorCode::kInvalidArgument,
                "there are " + std::to_string(kMaxSets) +
                    " process sets already; remove one before adding another"};
    } else {
      const SetId id = create_set(response.request.splits);
      if (mine) entry.completion->value = id.id;
    }
  } else {
    remove_set(response.request.root);
  }
  if (mine) finish(entry, status);
}

SetId Cycle::create_set(const std::vector<std::int64_t>& ranks) {
  SetId id;
  if (free_set_ids_.empty()) {
    id.id = next_set_id_++;
  } else {
    id.id = free_set_ids_.front();
    free_set_ids_.pop_front();
  }
  id.epoch = ++last_epoch_;
  std::vector<int> members(ranks.begin(), ranks.end());
  std::sort(members.begin(), members.end());
  insert_set(id, std::move(members));
  const auto early = early_.find(id.epoch);
  if (early != early_.end()) {
    auto messages = std::move(early->second);
    early_.erase(early);
    for (auto& [source, message] : messages) {
      const int from = source;
      std::visit([&](auto& content) { handle(from, content); }, message);
    }
  }
  return id;
}

void Cycle::insert_set(SetId id, std::vector<int> members) {
  auto set = std::make_unique<ProcessSet>();
  set->id = id;
  // Tags of a reused id start elsewhere, away from what may still be in flight of its predecessor.
  set->next_operation = id.epoch * 1024;
  set->members = std::make_shared<const std::vector<int>>(std::move(members));
  set->index = set->index_of(transport_.rank());
  if (set->index == 0) {
    set->coordinator =
        std::make_unique<Coordinator>(id, *set->members, shared_.config.cache_capacity);
  }
  shared_.sets.add({id, set->members, set->index});
  sets_[id.id] = std::move(set);
}

void Cycle::remove_set(std::int32_t id) {
  const auto found = sets_.find(id);
  if (found == sets_.end()) return;
  fail_pending(*found->second,
               {ErrorCode::kInvalidArgument, "process set " + std::to_string(id) + " was removed"});
  shared_.sets.remove(id);
  sets_.erase(found);
  free_set_ids_.push_back(id);
}

// --- completions and failures ---------------------------------------------------------------------------------------

void Cycle::finish(Entry& entry, const Status& status) {
  Completion& completion = *entry.completion;
  completion.status = status;
  shared_.recorder.reached(completion.record, status.ok() ? Stage::kDone : Stage::kFailed);
  ++(status.ok() ? shared_.counters.completed : shared_.counters.failed);
  shared_.queue.forget(*entry.request);
  completion.done.store(1, std::memory_order_release);
  shared_.event.bump();
}

void Cycle::fail_pending(ProcessSet& set, const Status& why) {
  for (auto& [name, pending] : std::exchange(set.pending, {})) {
    finish(pending.entry, {why.code, describe(*pending.entry.request) + ": " + why.message});
  }
  set.to_announce.clear();
}

void Cycle::fail_all(const Status& why) {
  if (!shared_.failure.happened()) {
    const std::string record = shared_.recorder.text(kRecordsInLog);
    shared_.log.write(
        LogLevel::kError, "control",
        why.message + (record.empty() ? "" : "\nlast operations of this rank:\n" + record));
  }
  shared_.failure.record(why);
  end_all(shared_.failure.status());
}

void Cycle::end_all(const Status& why) {
  executor_.park_all(why);
  for (auto& [id, set] : sets_) {
    for (auto& [name, pending] : std::exchange(set->pending, {})) finish(pending.entry, why);
    set->to_announce.clear();
  }
  for (Entry& entry : shared_.queue.take(true, 0, base::microseconds(0))) finish(entry, why);
}

void Cycle::peer_failed(int rank, const std::string& text) {
  left_.insert(rank);
  fail_all({ErrorCode::kPeerLost, transport_.describe_peer(rank) + " " + text + ". " + kShutDown});
}

void Cycle::broadcast_failure(const std::string& cause) {
  transport_.announce_failure(cause);
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer == transport_.rank() || left_.contains(peer)) continue;
    failure_unseen_.insert(peer);
  }
  send_to_all(Failure{cause});
}

// Leaving. What the others have not agreed to can never complete here.
void Cycle::say_goodbye() {
  if (said_goodbye_) return;
  said_goodbye_ = true;
  const Status why = {ErrorCode::kAborted, std::string("this rank has shut down. ") + kShutDown};
  for (Entry& entry : shared_.queue.take(true, 0, base::microseconds(0))) finish(entry, why);
  for (auto& [id, set] : sets_) fail_pending(*set, why);
  transport_.announce_leaving();
  send_to_all(Goodbye{});
}

bool Cycle::drained() { return executor_.idle() && transport_.messages_flushed(); }

void Cycle::send(int peer, const Message& message) {
  std::vector<std::byte> bytes = encode(message);
  ++shared_.counters.control_messages_sent;
  shared_.counters.control_bytes_sent += static_cast<std::int64_t>(bytes.size());
  transport_.send_message(peer, std::move(bytes));
}

void Cycle::send_to_all(const Message& message) {
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer != transport_.rank() && !left_.contains(peer)) send(peer, message);
  }
}

}  // namespace hvdlite::engine
