#include "engine/executor.h"

#include <algorithm>

namespace hvdlite::engine {
namespace {

// Enough in flight to fill the gaps of one operation with another, few enough to bound memory.
constexpr std::size_t kMaxRunning = 16;
constexpr std::size_t kMaxRunningBytes = std::size_t{256} << 20;

// Tag layout, from the low end: channel, operation number (modulo), process set.
constexpr int kSetBits = 10;

// An error below names no operation; with it the user learns where the job was.
template <typename F>
void naming(const Operation& operation, F work) {
  try {
    work();
  } catch (const base::Error& error) {
    throw base::Error(error.code(), describe(operation.first_request()) + ": " + error.what());
  }
}

std::shared_ptr<const ProcessSet> describe_set(const ProcessSet& set) {
  auto copy = std::make_shared<ProcessSet>();
  copy->id = set.id;
  copy->members = set.members;
  copy->index = set.index;
  copy->channel = set.channel;
  copy->second_channel = set.second_channel;
  copy->hosts = set.hosts;
  return copy;
}

}  // namespace

Executor::Executor(transport::Transport& transport, collectives::Selection selection,
                   OutputCache& outputs, std::size_t pool_bytes, Started started, Finished finished)
    : transport_(transport),
      selection_(std::move(selection)),
      outputs_(outputs),
      pool_(pool_bytes),
      started_(std::move(started)),
      finished_(std::move(finished)) {}

Executor::~Executor() { close(false); }

void Executor::close(bool memory_is_free) {
  if (!memory_is_free && !parked_.empty()) {
    // Leaked on purpose: a transfer may still be under way into or out of them.
    [[maybe_unused]] const auto* leaked = new auto(std::move(parked_));
  }
  parked_.clear();
}

std::uint32_t Executor::next_tag(ProcessSet& set) const {
  const int operation_bits = transport_.tag_bits() - collectives::kChannelBits - kSetBits;
  const auto operation = set.next_operation++ & ((std::uint32_t{1} << operation_bits) - 1);
  const auto slot = static_cast<std::uint32_t>(set.id.id) & ((std::uint32_t{1} << kSetBits) - 1);
  return ((slot << operation_bits) | operation) << collectives::kChannelBits;
}

void Executor::enqueue(ProcessSet& set, FusedOp fused, std::vector<Entry> entries) {
  Lane& lane = lanes_[set.id];
  if (!lane.set) lane.set = describe_set(set);
  lane.waiting.push_back({std::move(fused), std::move(entries), next_tag(set)});
}

bool Executor::advance() {
  bool moved = false;
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    moved = start(lane->second) || moved;
    moved = step(lane->second) || moved;
    const bool empty = lane->second.waiting.empty() && lane->second.running.empty();
    lane = empty ? lanes_.erase(lane) : std::next(lane);
  }
  return moved;
}

bool Executor::start(Lane& lane) {
  bool started = false;
  while (!lane.waiting.empty() && lane.running.size() < kMaxRunning &&
         (lane.running.empty() || lane.running_bytes < kMaxRunningBytes)) {
    Waiting next = std::move(lane.waiting.front());
    lane.waiting.pop_front();
    started_(next.entries);
    const collectives::Comm comm(
        transport_, lane.set->members, lane.set->index, next.tag, lane.set->id,
        {lane.set->channel.get(), lane.set->second_channel.get(), lane.set->hosts.get()});
    lane.running.push_back(
        std::make_unique<Operation>(std::move(next.fused), std::move(next.entries)));
    lane.running_bytes += lane.running.back()->bytes();
    Operation& operation = *lane.running.back();
    naming(operation, [&] { operation.start(comm, *lane.set, pool_, outputs_, selection_); });
    started = true;
  }
  return started;
}

bool Executor::step(Lane& lane) {
  bool finished = false;
  for (auto operation = lane.running.begin(); operation != lane.running.end();) {
    bool done = false;
    naming(**operation, [&] { done = (*operation)->advance(); });
    if (!done) {
      ++operation;
      continue;
    }
    lane.running_bytes -= (*operation)->bytes();
    finished_((*operation)->entries(), base::Status{});
    operation = lane.running.erase(operation);
    finished = true;
  }
  return finished;
}

void Executor::park_all(const base::Status& why) {
  for (auto& [id, lane] : lanes_) {
    for (auto& operation : lane.running) {
      for (const Entry& entry : operation->entries()) {
        // The memory stays with the parked operation: the transport may still write to it.
        if (entry.request && entry.completion->output) entry.completion->output->block.abandon();
      }
      finished_(operation->entries(), why);
      parked_.push_back(std::move(operation));
    }
    for (Waiting& waiting : lane.waiting) {
      finished_(waiting.entries, why);
    }
  }
  lanes_.clear();
}

}  // namespace hvdlite::engine
