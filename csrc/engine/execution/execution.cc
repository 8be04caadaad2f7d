// The way of an operation on host memory:
//
//    execute() ──────────────────────────► enqueue ──► waiting ──► start ──► running ──► step ──► finish
//    execute_prepared(): allreduce (kParts), ─┘
//                        or of several tensors       kParts: each member reduces some of the elements for all members
//                        all others ──► run_prepared ──► finish, in no lane
//
// An operation of any size starts if nothing runs in its lane. Otherwise it starts if fewer than kMaxRunning operations run in
// the lane, with fewer than kMaxRunningBytes bytes in all, and the newest of them has begun all its collectives. Operations of
// a lane may end in any order, because they do not disturb each other: their messages have different tags, and only one
// operation at a time uses the shared memory.
//
// All members give an operation the same tag: they execute a set's operations in the same order, and count them in
// next_operation. The set's lanes (host and GPU memory) share this count. No member counts a prepared operation without a lane.
//
// All members that prepare an operation prepare it in the same way, because preparation_of() reads only the requests, the set
// and the knobs. If a member cannot prepare the operation, for example because the member has no value, it announces the
// operation as not prepared. In this case no member calls execute_prepared().
#include "engine/execution/execution.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "collectives/prepared.h"
#include "engine/execution/host/run_prepared.h"
#include "engine/negotiation/ledger.h"
#include "transport/host_window.h"

namespace hvdlite::engine {

using base::OpKind;
using collectives::Preparation;

namespace {

// A prepared operation of at most this size in shared memory is not recorded as started, because recording would take longer
// than the operation itself. So Usage counts no time of moving data for the operation. Usage counts no bus bytes for it either,
// because users divide bus bytes by that time to get the bandwidth.
constexpr std::size_t kTinyBytes = 64;

// The payload of an operation in bytes, as nccl-tests count it: for an allgather the whole result, which has `gathered`
// elements, and for all other kinds the input.
std::size_t payload_of(const Request& request, std::int64_t gathered) {
  const auto elements = request.kind == OpKind::kAllgather ? gathered : request.elements();
  return static_cast<std::size_t>(elements) * base::size_of(request.dtype);
}

// The sum of the payloads of all operations of a FusedOp. For an alltoall: the bytes that this rank sends.
std::size_t payload_of(const FusedOp& fused, const std::vector<Entry>& entries) {
  const Request& first = fused.first();
  if (first.kind == OpKind::kAlltoall) {
    return entries.front().request ? entries.front().request->bytes() : 0;
  }
  const auto rows = std::accumulate(fused.sizes.begin(), fused.sizes.end(), std::int64_t{0});
  std::size_t bytes = 0;
  for (const AgreedOperation& part : fused.parts) {
    bytes += payload_of(*part.request, rows * first.row_elements());
  }
  return bytes;
}

std::size_t bytes_of(std::span<const Entry> unit) {
  std::size_t bytes = 0;
  for (const Entry& entry : unit) bytes += entry.request->bytes();
  return bytes;
}

// The inputs of all tensors of the unit, one after the other.
std::vector<std::byte> packed(std::span<const Entry> unit) {
  std::vector<std::byte> bytes;
  bytes.reserve(bytes_of(unit));
  for (const Entry& entry : unit) {
    const auto* const input = static_cast<const std::byte*>(entry.input);
    bytes.insert(bytes.end(), input, input + entry.request->bytes());
  }
  return bytes;
}

// The pool keeps memory of this many times the fusion threshold: enough for the operations that usually run at the same time.
constexpr std::size_t kPoolThresholds = 4;

// An algorithm that a knob forces is for host tensors only. For GPU tensors the algorithm is always chosen automatically.
collectives::Selection unforced(const collectives::Selection& selection) {
  collectives::Selection result;
  result.deterministic = selection.deterministic;
  result.recursive_doubling_max_bytes = selection.recursive_doubling_max_bytes;
  result.tuning = selection.tuning;
  return result;
}

// Do the members agree in a ledger that they share?
bool share_ledger(const SharingSet& set) {
  return set.shared.channel && !set.shared.hosts && set.size() <= Ledger::kMaxMembers;
}

SharingSetPtr sharing(const ProcessSet& set, SharedRegions shared) {
  return std::make_shared<const SharingSet>(SharingSet{set, std::move(shared)});
}

}  // namespace

Execution::Execution(transport::Transport& transport, collectives::Selection selection,
                     SharedState& shared)
    : transport_(transport),
      selection_(std::move(selection)),
      unforced_(unforced(selection_)),
      shared_(shared),
      pool_(kPoolThresholds * shared.config.fusion_threshold),
      watcher_([this] { transport_.ring(transport_.rank()); }),
      device_context_{transport_, shared_, unforced_, pool_, watcher_},
      transfers_(transport, shared, watcher_) {
  check_tags(transport);
}

// --- process sets -----------------------------------------------------------------------------------------------------

// The channels to shared memory are made even if there is no ledger, because collectives use them, too.
std::unique_ptr<Agreement> Execution::add_set(const ProcessSet& set,
                                              const Regions::Grant& regions) {
  // A set that reuses an id usually begins with other tags than the earlier set with this id. This is only a precaution: when
  // the earlier set was removed, all its operations had ended, so none of its messages is still under way.
  Set& known = sets_[set.id] = {sharing(set, share(transport_, set, regions)), sharing(set, {}),
                                set.id.epoch * 1024};
  if (!share_ledger(*known.host)) return nullptr;
  return std::make_unique<Ledger>(transport_.window()->ledger(regions.first->number),
                                  Ledger::Capacity{}, set.size(), set.index, set.id.epoch,
                                  known.host->shared.channel);
}

void Execution::share_staging(SetId set, const Regions::Grant& regions) {
  SharingSetPtr& gpu = sets_.at(set).gpu;
  gpu = sharing(*gpu, share(transport_, *gpu, regions));
}

// The GPU may still have work of the set, although the set's operations have ended. Until that work is done, the set's GPU lane
// stays in ending_.
void Execution::remove_set(SetId set) {
  sets_.erase(set);
  const auto found = device_lanes_.find(set);
  if (found == device_lanes_.end()) return;
  found->second->finish();
  ending_.push_back(std::move(found->second));
  device_lanes_.erase(found);
}

bool Execution::share_memory(SetId set) const {
  const SharingSet& known = *sets_.at(set).host;
  const collectives::SharedChannel* channel = known.shared.channel.get();
  return known.size() == 1 || (channel != nullptr && channel->size() == known.size());
}

// --- operations -------------------------------------------------------------------------------------------------------

// These operations are not prepared: those for which this rank has no value, those without bytes, those on GPUs, weighted ones
// (because the weights are exchanged first), and those on tensors in an arena (because the members read these where they lie).
Preparation Execution::preparation_of(const SharingSet& set, std::span<const Entry> unit) const {
  const auto cannot = [](const Entry& entry) {
    const Request& request = *entry.request;
    return request.absent || request.on_gpu() || request.weighted || request.arena != 0;
  };
  const std::size_t bytes = bytes_of(unit);
  if (bytes == 0 || std::ranges::any_of(unit, cannot)) return Preparation::kNone;
  const Request& request = *unit.front().request;
  const bool shares = share_ledger(set);
  const collectives::CommShape shape{
      .ranks = set.size(),
      .shared = shares,
      .hosts = set.shared.hosts ? set.shared.hosts->hosts() : 0,
      .prepared_bytes = shares ? set.shared.channel->prepared_bytes() : 0};
  return collectives::preparation_of(request.kind, bytes, reduction_of(request, 1), shape,
                                     selection_);
}

// If the members share a ledger, the input is copied at once to its place in their shared memory. Otherwise the input travels
// with the announcement, and payload.input refers to the caller's tensor or to payload.packed.
std::optional<InlinePayload> Execution::prepare(SetId set, std::span<const Entry> unit) {
  const SharingSet& known = *sets_.find(set)->second.host;
  const Entry& entry = unit.front();
  const Request& request = *entry.request;
  const Preparation preparation = preparation_of(known, unit);
  if (preparation == Preparation::kNone) return std::nullopt;
  InlinePayload payload;
  if (unit.size() > 1) {
    payload.packed = std::make_shared<const std::vector<std::byte>>(packed(unit));
    payload.input = *payload.packed;
  } else if (request.kind != OpKind::kBroadcast || request.root == transport_.rank()) {
    // Of a broadcast, the members need only the root's input.
    payload.input = {static_cast<const std::byte*>(entry.input), request.bytes()};
  }
  if (share_ledger(known)) collectives::prepare(*known.shared.channel, payload.input);
  if (preparation == Preparation::kParts) payload.parts = parts_of(unit, known);
  return payload;
}

void Execution::execute_prepared(SetId set, std::vector<Entry>& unit,
                                 std::vector<std::vector<std::byte>> payloads) {
  Set& state = sets_.find(set)->second;
  const SharingSet& known = *state.host;
  Entry& entry = unit.front();
  const Request& request = *entry.request;
  const Preparation preparation = preparation_of(known, unit);
  HVD_CHECK(preparation != Preparation::kNone);
  const int members = known.size();
  ++shared_.counters.riding_ops;
  const bool in_parts = preparation == Preparation::kParts && request.kind == OpKind::kAllreduce;
  if (in_parts || unit.size() > 1) {
    shared_.reached(unit, FlightRecorder::Stage::kAgreed);
    FusedOp fused;
    for (const Entry& each : unit) fused.parts.push_back({each.request, members});
    enqueue(state, {std::move(fused), std::move(unit), 0, std::move(payloads)});
    return;
  }
  const bool tiny = request.bytes() <= kTinyBytes && payloads.empty();
  if (!tiny) shared_.reached({&entry, 1}, FlightRecorder::Stage::kStarted);
  const bool shares = share_ledger(known);
  const collectives::PreparedInputs inputs =
      shares ? collectives::PreparedInputs(*known.shared.channel)
             : collectives::PreparedInputs(payloads);
  run_prepared(inputs, known, entry, *shared_.outputs, selection_.tuning.isa);
  if (shares) known.shared.channel->count_prepared();
  entry.completion->contributors = members;
  // A tiny operation is counted like an operation of a set with one member, which adds no bus bytes.
  shared_.usage.moves(request.kind, payload_of(request, request.elements() * members),
                      tiny ? 1 : static_cast<std::size_t>(members));
  ++shared_.counters.fused_ops;
  shared_.finish({&entry, 1}, base::Status{});
}

void Execution::execute(SetId set, FusedOp fused, std::vector<Entry> entries) {
  enqueue(sets_.at(set), {std::move(fused), std::move(entries), 0, {}});
}

void Execution::enqueue(Set& set, QueuedOperation operation) {
  const Request& first = operation.fused.first();
  ++shared_.counters.fused_ops;
  shared_.usage.moves(first.kind, payload_of(operation.fused, operation.entries),
                      set.host->members->size());
  if (first.arena != 0) ++shared_.counters.arena_ops;
  if (first.on_gpu()) {
    // device_lane() comes before next_tag(): a new lane takes tags for its DeviceLink, so the operation's tag comes after these
    // on all members.
    DeviceLane& lane = device_lane(set, operation.entries);
    operation.tag = next_tag(set);
    return lane.enqueue(std::move(operation));
  }
  Lane& lane = lanes_[set.host->id];
  if (!lane.set) lane.set = set.host;
  operation.tag = next_tag(set);
  lane.waiting.push_back(std::move(operation));
}

std::uint32_t Execution::next_tag(Set& set) const {
  return tag_of(transport_, set.host->id, set.next_operation++);
}

// The set's first GPU operation makes the lane. That operation has the same place in the order on all members, so the members
// give the messages of the DeviceLink the same tags.
DeviceLane& Execution::device_lane(Set& set, const std::vector<Entry>& entries) {
  auto lane = device_lanes_.find(set.host->id);
  if (lane == device_lanes_.end()) {
    std::array<std::uint32_t, DeviceLink::kTags> tags{};
    for (std::uint32_t& tag : tags) tag = next_tag(set);
    const auto own =
        std::ranges::find_if(entries, [](const Entry& entry) { return entry.request != nullptr; });
    const int home = own != entries.end() ? own->request->device : -1;
    auto made = std::make_unique<DeviceLane>(device_context_, set.gpu, tags, home);
    lane = device_lanes_.emplace(set.host->id, std::move(made)).first;
  }
  return *lane->second;
}

bool Execution::idle() const {
  return lanes_.empty() && transfers_.idle() &&
         std::ranges::all_of(device_lanes_, [](const auto& lane) { return lane.second->idle(); });
}

bool Execution::idle(SetId set) const {
  const auto found = device_lanes_.find(set);
  return !lanes_.contains(set) && transfers_.idle(set) &&
         (found == device_lanes_.end() || found->second->idle());
}

bool Execution::settled() const {
  return ending_.empty() && transfers_.settled() &&
         std::ranges::all_of(device_lanes_,
                             [](const auto& lane) { return lane.second->settled(); });
}

// An empty lane is erased, so idle() need not look into lanes. The next operation makes a new lane. Nothing is lost, because
// the channels belong to the set.
bool Execution::advance() {
  bool moved = false;
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    moved = start(lane->second) || moved;
    moved = step(lane->second) || moved;
    const bool empty = lane->second.waiting.empty() && lane->second.running.empty();
    lane = empty ? lanes_.erase(lane) : std::next(lane);
  }
  if (!device_lanes_.empty() || !ending_.empty()) moved = advance_devices() || moved;
  if (!transfers_.idle() || !transfers_.settled()) moved = transfers_.advance() || moved;
  return moved;
}

// The transport does not see that GPUs move data, so this function tells it (note_progress).
bool Execution::advance_devices() {
  bool moved = false;
  for (auto& [id, lane] : device_lanes_) moved = lane->advance() || moved;
  for (auto& lane : ending_) moved = lane->advance() || moved;
  std::erase_if(ending_, [](const auto& lane) { return lane->settled(); });
  if (moved) transport_.note_progress();
  return moved;
}

bool Execution::start(Lane& lane) {
  bool started = false;
  while (!lane.waiting.empty() && lane.running.size() < kMaxRunning &&
         (lane.running.empty() ||
          (lane.running_bytes < kMaxRunningBytes && lane.running.back()->has_begun()))) {
    QueuedOperation next = std::move(lane.waiting.front());
    lane.waiting.pop_front();
    shared_.reached(next.entries, FlightRecorder::Stage::kStarted);
    const collectives::Comm comm = lane.set->comm(transport_, next.tag);
    lane.running.push_back(std::make_unique<HostOperation>(
        std::move(next), comm,
        HostOperation::Context{*lane.set, pool_, *shared_.outputs, selection_, shared_.counters}));
    Operation& operation = *lane.running.back();
    // The operation is in `running` before start() or advance() may throw, so that retain_all() finds the operation's entries.
    lane.running_bytes += operation.bytes();
    naming(operation.first_request(), [&] { operation.start(); });
    started = true;
  }
  return started;
}

// Returns true if an operation has ended or the next one may start. The result does not tell whether data have moved: the
// transport's activity() tells that (cycle.cc).
bool Execution::step(Lane& lane) {
  bool moved = false;
  for (auto operation = lane.running.begin(); operation != lane.running.end();) {
    const bool had_begun = (*operation)->has_begun();
    const bool done =
        naming((*operation)->first_request(), [&] { return (*operation)->advance(); });
    if (!done) {
      moved = moved || had_begun != (*operation)->has_begun();  // the next one may start
      ++operation;
      continue;
    }
    lane.running_bytes -= (*operation)->bytes();
    shared_.finish((*operation)->entries(), base::Status{});
    operation = lane.running.erase(operation);
    moved = true;
  }
  return moved;
}

// --- endings ----------------------------------------------------------------------------------------------------------

// A waiting operation has given no memory to the transport, so it is not retained.
void Execution::retain_all(const base::Status& why) {
  for (auto& [id, lane] : lanes_) {
    for (auto& operation : lane.running) {
      operation->abandon();
      shared_.finish(operation->entries(), why);
      retained_.push_back(std::move(operation));
    }
    for (QueuedOperation& waiting : lane.waiting) shared_.finish(waiting.entries, why);
  }
  lanes_.clear();
  const auto retain = [&](std::unique_ptr<DeviceLane>& lane) {
    if (!shared_.failure.happened() && lane->idle() && lane->settled()) return;
    lane->abandon(why);
    retained_lanes_.push_back(std::move(lane));
  };
  for (auto& [id, lane] : device_lanes_) retain(lane);
  for (auto& lane : ending_) retain(lane);
  transfers_.retain_all(why);
  std::erase_if(device_lanes_, [](const auto& item) { return item.second == nullptr; });
  std::erase(ending_, nullptr);
}

Execution::~Execution() { close(false); }

// The watcher's thread rings through the transport. So the watcher stops here, while the transport still exists.
void Execution::close(bool memory_is_free) {
  watcher_.stop();
  transfers_.close(memory_is_free);
  for (auto& [id, lane] : device_lanes_) lane->finish();
  device_lanes_.clear();
  ending_.clear();
  if (!memory_is_free && !(retained_.empty() && retained_lanes_.empty())) {
    // Leaks the operations, because the transport or a GPU may still use their memory.
    [[maybe_unused]] const auto* leaked = new auto(std::move(retained_));
    [[maybe_unused]] const auto* lanes = new auto(std::move(retained_lanes_));
  }
  retained_.clear();
  retained_lanes_.clear();
}

}  // namespace hvdlite::engine
