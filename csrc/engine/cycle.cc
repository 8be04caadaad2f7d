#include "engine/cycle.h"

#include <algorithm>
#include <numeric>

#include "engine/model/text.h"
#include "engine/negotiation/fusion_planner.h"

namespace hvdlite::engine {

using base::Clock;
using base::ErrorCode;
using base::OpKind;
using base::Status;
using Stage = FlightRecorder::Stage;

namespace {

// Memory kept for fusion buffers, in fusion thresholds: enough for the operations usually in flight.
constexpr std::size_t kPoolThresholds = 4;
// Something could not be done because another rank was at it: soon again, and then after this part of the time for which
// nothing has happened. That rank may have been stopped, and each look costs some ten microseconds.
constexpr base::microseconds kTryAgain{20};
constexpr base::microseconds kTryAgainLater{10'000};
constexpr int kLooksPerWait = 8;
// Gradients of one step come closer together than this part of a cycle.
constexpr int kPausesInCycle = 8;

// Bytes that a FusedOp moves, as nccl-tests count them: the whole result of an allgather, of an alltoall what this rank sends, of
// all others the input.
std::size_t payload_of(const FusedOp& fused, const std::vector<Entry>& entries) {
  const Request& first = fused.first();
  if (first.kind == OpKind::kAllgather) {
    const auto rows = std::accumulate(fused.sizes.begin(), fused.sizes.end(), std::int64_t{0});
    return static_cast<std::size_t>(rows * first.row_elements()) * base::size_of(first.dtype);
  }
  if (first.kind == OpKind::kAlltoall) {
    return entries.front().request ? entries.front().request->bytes() : 0;
  }
  std::size_t bytes = 0;
  for (const Agreed& part : fused.parts) bytes += part.request->bytes();
  return bytes;
}

Patience patience_of(double cycle_time_ms, int ranks) {
  const base::microseconds cycle = base::from_seconds(cycle_time_ms / 1000);
  const base::microseconds nothing{0};
  return {.since_first = cycle, .since_last = ranks > 1 ? cycle / kPausesInCycle : nothing};
}

Roster roster_of(const transport::Transport& transport) {
  std::vector<Roster::Rank> ranks;
  ranks.reserve(static_cast<std::size_t>(transport.size()));
  for (int rank = 0; rank < transport.size(); ++rank) {
    ranks.push_back({transport.host_of(rank), transport.describe_peer(rank)});
  }
  return {transport.rank(), std::move(ranks)};
}

Membership::Limits limits_of(const base::Config& config) {
  return {.deadlock = config.deadlock_timeout,
          .stall = {config.stall_check_time_seconds, config.stall_shutdown_time_seconds},
          .peer = config.peer_timeout};
}

}  // namespace

Cycle::Cycle(transport::Transport& transport, SharedState& shared, collectives::Selection selection)
    : transport_(transport),
      shared_(shared),
      patience_(patience_of(shared.config.cycle_time_ms, transport.size())),
      isa_(selection.tuning.isa),
      may_ride_(selection.allreduce == "auto" || selection.allreduce == "shm"),
      agreement_is_barrier_(selection.barrier == "auto"),
      executor_(
          transport, std::move(selection), shared, kPoolThresholds * shared.config.fusion_threshold,
          [this](std::span<const Entry> entries) { shared_.reached(entries, Stage::kStarted); },
          [this](std::span<const Entry> entries, const Status& status) {
            finish(entries, status);
          }),
      membership_(roster_of(transport), limits_of(shared.config), shared.time.now()),
      facts_(make_facts()) {
  if (transport_.window() != nullptr) {
    regions_.resize(static_cast<std::size_t>(transport_.window()->regions()));
  }
  std::vector<std::int64_t> world(static_cast<std::size_t>(transport.size()));
  std::iota(world.begin(), world.end(), 0);
  create_set(world);
  agrees_in_memory_ = sets_.begin()->second->accord != nullptr;
}

bool Cycle::pass(bool flush, bool thorough) {
  ++shared_.counters.passes;
  return guard([&] { return pass_once(flush, thorough); });
}

bool Cycle::pass_once(bool flush, bool thorough) {
  if (shared_.failure.happened()) {
    end_all(shared_.failure.status());
    hear_who_knows();
    transport_.messages_flushed();  // what tells the peers is still on its way
    return false;
  }
  shared_.usage.forget_now();
  bool moved = (thorough || !agrees_in_memory_) && receive();
  moved = announce(flush) || moved;
  moved = coordinate() || moved;
  moved = executor_.advance() || moved;
  if (transport_.activity() != seen_activity_) {
    seen_activity_ = transport_.activity();
    moved = true;
  }
  if (moved) {
    if (!executor_.idle()) shared_.usage.forget_now();  // what moves data may have taken long
    moved_at_ = shared_.usage.now();
  }
  const Clock::time_point now = shared_.usage.now();
  if (membership_.due(now)) apply(membership_.look(now, *facts_));
  shared_.counters.data_bytes_sent.store(static_cast<std::int64_t>(transport_.bytes_sent()));
  return moved;
}

Outlook Cycle::outlook() const {
  Outlook outlook;
  outlook.idle = std::chrono::duration_cast<base::microseconds>(shared_.time.now() - moved_at_);
  outlook.moving_data = !executor_.idle();
  outlook.gpu_at_work = !executor_.settled();
  for (const auto& [id, set] : sets_) {
    outlook.negotiating = outlook.negotiating || set->has_pending();
  }
  outlook.watching = membership_.watching();
  bool try_again = false;
  for (const auto& [id, set] : sets_) {
    try_again = try_again || (set->accord && set->accord->try_again);
  }
  if (try_again) {
    outlook.due = std::clamp(outlook.idle / kLooksPerWait, kTryAgain, kTryAgainLater);
  } else if (const auto due = shared_.queue.due(patience_)) {
    outlook.due =
        std::max(base::microseconds(1),
                 std::chrono::duration_cast<base::microseconds>(*due - shared_.time.now()));
  }
  return outlook;
}

ProcessSet* Cycle::find_set(SetId id) {
  const auto found = sets_.find(id.id);
  return found != sets_.end() && found->second->id == id ? found->second.get() : nullptr;
}

// --- step 2: what callers submitted ---------------------------------------------------------------------------------

bool Cycle::announce(bool flush) {
  Clock::time_point since;
  std::vector<Entry> entries = std::exchange(taken_, {});
  shared_.queue.take(flush, shared_.config.fusion_threshold, patience_, &entries, &since);
  if (!entries.empty()) {
    shared_.timeline.announcing();
    shared_.usage.taken(entries, since);
  }
  for (Entry& entry : entries) admit(std::move(entry));
  bool any = !entries.empty();
  entries.clear();
  taken_ = std::move(entries);
  any = resume_removals() || any;
  for_each_set([&](ProcessSet& set) {
    const SetId id = set.id;
    if (set.accord) any = agree(set) || any;
    // What was agreed may have removed it.
    if (find_set(id) == nullptr) return;
    if (set.to_announce.empty() && !(set.accord && set.accord->tells_closing)) return;
    announce_pending(set);
    any = true;
  });
  return any;
}

void Cycle::admit(Entry entry) {
  const Request& request = *entry.request;
  ProcessSet* set = find_set(request.set);
  Status refusal;
  if (set == nullptr) {
    refusal = {ErrorCode::kInvalidArgument,
               describe(request) + ": the process set has been removed"};
  } else if (membership_.said_goodbye()) {
    refusal = {ErrorCode::kAborted, describe(request) + ": " + kShutDownHere};
  } else if (!set->broken.ok()) {
    refusal = {set->broken.code, describe(request) + ": " + set->broken.message};
  } else if (!set->pending.empty() && set->pending.contains(kJoinName)) {
    refusal = {ErrorCode::kInvalidArgument,
               describe(request) +
                   ": this rank has joined the process set and must wait for join() to return"};
  } else if (set->being_removed) {
    refusal = {ErrorCode::kInvalidArgument, describe(request) +
                                                ": this rank is removing the process set; call "
                                                "remove_process_set after everything else on it"};
  }
  if (!refusal.ok()) {
    finish({&entry, 1}, refusal);
    return;
  }
  if (request.kind == OpKind::kRemoveProcessSet && hold_removal(entry)) return;
  if (set->accord && request.kind == OpKind::kJoin) {
    set->accord->joins = true;
    set->pending.emplace(kJoinName, Pending{std::move(entry)});
  } else if (!set->accord || !set->accord->admit(entry)) {
    await_decision(*set, std::move(entry));
  }
}

void Cycle::announce_pending(ProcessSet& set) {
  Announcement message;
  message.set = set.id;
  message.seen = set.seen;
  if (set.accord) {
    message.closings = set.accord->closings;
    set.accord->tells_closing = false;
  }
  for (const std::string& name : std::exchange(set.to_announce, {})) {
    const auto found = set.pending.find(name);
    // A name may be there twice: of an operation that has ended meanwhile, and of the next one under that name.
    if (found == set.pending.end() || found->second.announced) continue;
    Pending& pending = found->second;
    pending.announced = true;
    shared_.reached({&pending.entry, 1}, Stage::kAnnounced);
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
  deliver(set.coordinator_rank(), std::move(message));
}

// --- steps 3 and 4: decide, and follow what was decided -------------------------------------------------------------

bool Cycle::coordinate() {
  // The others know that nothing more is decided here.
  if (membership_.said_goodbye()) return false;
  bool any = false;
  for_each_set([&](ProcessSet& set) {
    if (!set.coordinator) return;
    if (set.accord) carry_out_verdicts(set);
    if (set.coordinator->has_decisions()) any = send_decisions(set) || any;
  });
  return any;
}

bool Cycle::send_decisions(ProcessSet& set) {
  ResponseList list;
  list.set = set.id;
  list.in_ledger = set.accord && set.accord->ledger().exists();
  if (list.in_ledger) {
    Ledger& ledger = set.accord->ledger();
    const bool locked = ledger.try_lock();
    if (!locked || !ledger.has_room(1)) {
      if (locked) ledger.unlock();
      set.accord->try_again = true;
      return false;
    }
  }
  list.last = set.coordinator->take_last();
  list.decisions = set.coordinator->collect();
  if (set.accord) {
    std::vector<std::uint64_t> keys;
    for (const Decision& decision : list.decisions) {
      Accord::add_keys(*decision.response->request, keys);
    }
    if (list.in_ledger) {
      set.accord->ledger().append_list(set.coordinator->sequence(), keys);
      set.accord->ledger().unlock();
    }
    set.accord->divert_no_more(std::move(keys));
  }
  for (const int member : *set.members) {
    if (member != transport_.rank() && !membership_.roster().has_left(member)) send(member, list);
  }
  if (list.in_ledger) {
    set.accord->lists.push_back(std::move(list));
    read_ledger(set);
  } else {
    follow(set, list);
  }
  return true;
}

void Cycle::follow(ProcessSet& set, const ResponseList& list) {
  const SetId id = set.id;
  ++set.seen;
  came_last(set, list.last, list.decisions.size());
  std::vector<ResponsePtr> responses;
  std::vector<Agreed> agreed;
  responses.reserve(list.decisions.size());
  agreed.reserve(list.decisions.size());
  for (const Decision& decision : list.decisions) {
    const ResponsePtr& response = responses.emplace_back(remember(set, decision));
    const bool failed = !response->error.ok();
    agreed.push_back({response->request, response->contributors, failed, response->divisor});
    if (set.accord) go_by_message(set, set.accord->withdraw(*response->request, failed));
    if (!failed) check_mine(set, *response);
  }
  for (const std::vector<std::uint32_t>& places : plan_fusion(
           agreed, shared_.config.fusion_threshold, static_cast<int>(set.members->size()))) {
    ProcessSet* still = find_set(id);
    if (still == nullptr) return;
    FusedOp fused;
    for (const std::uint32_t place : places) fused.parts.push_back(agreed[place]);
    follow_fused(*still, responses[places.front()], std::move(fused));
  }
}

// Keeps this rank's response cache in step with the coordinator's, and gives the full response.
ResponsePtr Cycle::remember(ProcessSet& set, const Decision& decision) {
  if (decision.hit) return set.cache.at(static_cast<std::uint32_t>(decision.response->slot));
  const Response& response = *decision.response;
  if (response.slot < 0) return decision.response;
  HVD_CHECK(static_cast<std::size_t>(response.slot) < shared_.config.cache_capacity);
  const auto mine = set.pending.find(response.request->name);
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

// Without a request if it is not ours: this rank has joined, or an error concerns an operation it never submitted.
Entry Cycle::take_entry(ProcessSet& set, const std::string& name) {
  const auto found = set.pending.find(name);
  if (found == set.pending.end()) return take_held_removal(set.id, name);
  Entry entry = std::move(found->second.entry);
  set.pending.erase(found);
  shared_.reached({&entry, 1}, Stage::kAgreed);
  return entry;
}

// Only allreduces without error are fused; the rest, all that need more of the response, come by themselves.
void Cycle::follow_fused(ProcessSet& set, const ResponsePtr& first, FusedOp fused) {
  std::vector<Entry> entries;
  entries.reserve(fused.parts.size());
  bool all_mine = true;
  for (const Agreed& part : fused.parts) {
    entries.push_back(take_entry(set, part.request->name));
    all_mine = all_mine && entries.back().request;
  }
  if (!all_mine && first->error.ok()) check_absence(set, *first, entries);
  const OpKind kind = first->request->kind;
  if (!first->error.ok()) {
    if (entries[0].request) finish(entries, first->error);
  } else if (kind == OpKind::kJoin || kind == OpKind::kAddProcessSet ||
             kind == OpKind::kRemoveProcessSet) {
    settle_without_data(*first, entries[0]);
  } else {
    fused.sizes = first->sizes;
    execute(set, std::move(fused), std::move(entries));
  }
}

void Cycle::came_last(const ProcessSet& set, int member, std::size_t operations) {
  const std::size_t members = set.members->size();
  if (members == 1 || member < 0) return;
  HVD_CHECK(static_cast<std::size_t>(member) < members);
  shared_.usage.came_last((*set.members)[static_cast<std::size_t>(member)], operations);
}

void Cycle::execute(ProcessSet& set, FusedOp fused, std::vector<Entry> entries) {
  ++shared_.counters.fused_ops;
  shared_.usage.moves(fused.first().kind, payload_of(fused, entries), set.members->size());
  if (fused.first().arena != 0) ++shared_.counters.arena_ops;
  if (fused.first().on_gpu()) share_staging_memory(set);
  executor_.enqueue(set, std::move(fused), std::move(entries));
}

void Cycle::send(int peer, const Message& message) {
  std::vector<std::byte> bytes = encode(message);
  ++shared_.counters.control_messages_sent;
  shared_.counters.control_bytes_sent += static_cast<std::int64_t>(bytes.size());
  transport_.send_message(peer, std::move(bytes));
}

}  // namespace hvdlite::engine
