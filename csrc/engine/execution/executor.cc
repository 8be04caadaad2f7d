#include "engine/execution/executor.h"

#include <algorithm>

#include "engine/execution/tags.h"

namespace hvdlite::engine {
namespace {

// Memory kept for fusion buffers, in fusion thresholds: enough for the operations usually in flight.
constexpr std::size_t kPoolThresholds = 4;

// Forced algorithms are for tensors in host memory: for those of GPUs the size decides.
collectives::Selection unforced(const collectives::Selection& selection) {
  collectives::Selection result;
  result.deterministic = selection.deterministic;
  result.recursive_doubling_max_bytes = selection.recursive_doubling_max_bytes;
  result.tuning = selection.tuning;
  return result;
}

}  // namespace

Executor::Executor(transport::Transport& transport, collectives::Selection selection,
                   SharedState& shared)
    : transport_(transport),
      selection_(std::move(selection)),
      unforced_(unforced(selection_)),
      shared_(shared),
      pool_(kPoolThresholds * shared.config.fusion_threshold),
      watcher_([this] { transport_.ring(transport_.rank()); }),
      device_context_{
          {transport_, shared_.devices, shared_.config, shared_.log, shared_.time, unforced_},
          shared_,
          pool_,
          watcher_} {}

Executor::~Executor() { close(false); }

void Executor::close(bool memory_is_free) {
  watcher_.stop();
  for (auto& [id, lane] : device_lanes_) lane->finish();
  device_lanes_.clear();
  ending_.clear();
  if (!memory_is_free && !(parked_.empty() && parked_lanes_.empty())) {
    // Leaked on purpose: a transfer may still be under way into or out of them.
    [[maybe_unused]] const auto* leaked = new auto(std::move(parked_));
    [[maybe_unused]] const auto* lanes = new auto(std::move(parked_lanes_));
  }
  parked_.clear();
  parked_lanes_.clear();
}

std::uint32_t Executor::next_tag(ExecutionSet& set) const {
  return tag_of(transport_, set.id(), set.next_operation++);
}

void Executor::enqueue(ExecutionSet& set, FusedOp fused, std::vector<Entry> entries) {
  if (fused.first().on_gpu()) {
    DeviceLane& lane = device_lane(set, entries);
    lane.enqueue(std::move(fused), std::move(entries), next_tag(set));
    return;
  }
  Lane& lane = lanes_[set.id()];
  if (!lane.set) lane.set = set.host;
  lane.waiting.push_back({std::move(fused), std::move(entries), next_tag(set)});
}

// The first operation on a GPU, which comes at the same place on all members, makes it.
DeviceLane& Executor::device_lane(ExecutionSet& set, const std::vector<Entry>& entries) {
  auto lane = device_lanes_.find(set.id());
  if (lane == device_lanes_.end()) {
    std::array<std::uint32_t, DeviceLink::kTags> tags{};
    for (std::uint32_t& tag : tags) tag = next_tag(set);
    const auto own =
        std::ranges::find_if(entries, [](const Entry& entry) { return entry.request != nullptr; });
    const int home = own != entries.end() ? own->request->device : -1;
    auto made = std::make_unique<DeviceLane>(device_context_, set.gpu, tags, home);
    lane = device_lanes_.emplace(set.id(), std::move(made)).first;
  }
  return *lane->second;
}

bool Executor::idle() const {
  return lanes_.empty() &&
         std::ranges::all_of(device_lanes_, [](const auto& lane) { return lane.second->idle(); });
}

bool Executor::idle(SetId set) const {
  const auto found = device_lanes_.find(set);
  return !lanes_.contains(set) && (found == device_lanes_.end() || found->second->idle());
}

bool Executor::settled() const {
  return ending_.empty() && std::ranges::all_of(device_lanes_, [](const auto& lane) {
           return lane.second->settled();
         });
}

bool Executor::advance() {
  bool moved = false;
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    moved = start(lane->second) || moved;
    moved = step(lane->second) || moved;
    const bool empty = lane->second.waiting.empty() && lane->second.running.empty();
    lane = empty ? lanes_.erase(lane) : std::next(lane);
  }
  if (!device_lanes_.empty() || !ending_.empty()) moved = advance_devices() || moved;
  return moved;
}

bool Executor::advance_devices() {
  bool moved = false;
  for (auto& [id, lane] : device_lanes_) moved = lane->advance() || moved;
  for (auto& lane : ending_) moved = lane->advance() || moved;
  std::erase_if(ending_, [](const auto& lane) { return lane->settled(); });
  return moved;
}

void Executor::forget(SetId set) {
  const auto found = device_lanes_.find(set);
  if (found == device_lanes_.end()) return;
  found->second->finish();
  ending_.push_back(std::move(found->second));
  device_lanes_.erase(found);
}

bool Executor::start(Lane& lane) {
  bool started = false;
  while (!lane.waiting.empty() && lane.running.size() < kMaxRunning &&
         (lane.running.empty() || lane.running_bytes < kMaxRunningBytes)) {
    Waiting next = std::move(lane.waiting.front());
    lane.waiting.pop_front();
    shared_.reached(next.entries, FlightRecorder::Stage::kStarted);
    const collectives::Comm comm(transport_, lane.set->members, lane.set->index, next.tag,
                                 lane.set->id, lane.set->shared.sharing());
    lane.running.push_back(std::make_unique<HostOperation>(
        std::move(next.fused), std::move(next.entries), comm,
        HostOperation::Context{*lane.set, pool_, *shared_.outputs, selection_, shared_.counters}));
    Operation& operation = *lane.running.back();
    lane.running_bytes += operation.bytes();
    naming(operation.first_request(), [&] { operation.start(); });
    started = true;
  }
  return started;
}

bool Executor::step(Lane& lane) {
  bool finished = false;
  for (auto operation = lane.running.begin(); operation != lane.running.end();) {
    bool done = false;
    naming((*operation)->first_request(), [&] { done = (*operation)->advance(); });
    if (!done) {
      ++operation;
      continue;
    }
    lane.running_bytes -= (*operation)->bytes();
    shared_.finish((*operation)->entries(), base::Status{});
    operation = lane.running.erase(operation);
    finished = true;
  }
  return finished;
}

void Executor::park_all(const base::Status& why, bool lost) {
  for (auto& [id, lane] : lanes_) {
    for (auto& operation : lane.running) {
      operation->abandon();
      shared_.finish(operation->entries(), why);
      parked_.push_back(std::move(operation));
    }
    for (Waiting& waiting : lane.waiting) {
      shared_.finish(waiting.entries, why);
    }
  }
  lanes_.clear();
  const auto park = [&](std::unique_ptr<DeviceLane>& lane) {
    if (!lost && lane->idle() && lane->settled()) return;
    lane->park(why);
    parked_lanes_.push_back(std::move(lane));
  };
  for (auto& [id, lane] : device_lanes_) park(lane);
  for (auto& lane : ending_) park(lane);
  std::erase_if(device_lanes_, [](const auto& item) { return item.second == nullptr; });
  std::erase(ending_, nullptr);
}

}  // namespace hvdlite::engine
