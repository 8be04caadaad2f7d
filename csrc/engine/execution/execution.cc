#include "engine/execution/execution.h"

#include <numeric>
#include <utility>

#include "collectives/allreduce_inline.h"
#include "engine/negotiation/shared_agreement.h"
#include "transport/host_window.h"

namespace hvdlite::engine {

using base::OpKind;

namespace {

// The recorder and the counters are told of prepared payloads above this size only: for smaller ones that would take longer than
// the operation itself.
constexpr std::size_t kTinyBytes = 64;

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

SharingSetPtr sharing(const ProcessSet& set, SharedRegions shared) {
  return std::make_shared<const SharingSet>(SharingSet{set, std::move(shared)});
}

}  // namespace

Execution::Execution(transport::Transport& transport, collectives::Selection selection,
                     SharedState& shared)
    : transport_(transport),
      shared_(shared),
      selection_(selection),
      executor_(transport, std::move(selection), shared),
      transfers_(transport, shared) {}

std::unique_ptr<Agreement> Execution::add_set(const ProcessSet& set,
                                              const Regions::Grant& regions) {
  // Tags of a reused id start elsewhere, away from what may still be in flight of its predecessor.
  ExecutionSet& known = sets_[set.id] = {sharing(set, share(transport_, set, regions)),
                                         sharing(set, {}), set.id.epoch * 1024};
  const SharedRegions& shared = known.host->shared;
  if (!shared.channel || shared.hosts || set.size() > Ledger::kMaxMembers) return nullptr;
  return std::make_unique<SharedAgreement>(transport_.window()->ledger(regions.first->number),
                                           shared.channel, set.id.epoch);
}

void Execution::share_staging(SetId set, const Regions::Grant& regions) {
  SharingSetPtr& gpu = sets_.at(set).gpu;
  gpu = sharing(*gpu, share(transport_, *gpu, regions));
}

void Execution::remove_set(SetId set) {
  executor_.forget(set);
  sets_.erase(set);
}

bool Execution::share_memory(SetId set) const {
  const SharingSet& known = *sets_.at(set).host;
  const collectives::SharedChannel* channel = known.shared.channel.get();
  return known.size() == 1 || (channel != nullptr && channel->size() == known.size());
}

bool Execution::may_prepare(const collectives::SharedChannel& channel,
                            const Request& request) const {
  return request.kind == OpKind::kAllreduce && !request.absent && !request.on_gpu() &&
         request.arena == 0 &&
         collectives::prepares_allreduce(request.bytes(), request.op, channel, selection_);
}

bool Execution::prepare(SetId set, const Entry& entry) {
  collectives::SharedChannel& channel = *sets_.find(set)->second.host->shared.channel;
  const Request& request = *entry.request;
  if (!may_prepare(channel, request)) return false;
  collectives::prepare_inline(channel, entry.input, request.bytes());
  return true;
}

void Execution::execute_prepared(SetId set, Entry& entry) {
  collectives::SharedChannel& channel = *sets_.find(set)->second.host->shared.channel;
  const Request& request = *entry.request;
  HVD_CHECK(may_prepare(channel, request));
  const int members = channel.size();
  const bool moves = request.bytes() > kTinyBytes;
  if (moves) shared_.reached({&entry, 1}, FlightRecorder::Stage::kStarted);
  collectives::reduce_prepared(
      channel, {entry.input, entry.output, static_cast<std::size_t>(request.elements())},
      reduction_of(request, members), selection_.tuning.isa);
  entry.completion->contributors = members;
  // As if there were one member: no link had to carry it.
  shared_.usage.moves(request.kind, request.bytes(), moves ? static_cast<std::size_t>(members) : 1);
  ++shared_.counters.riding_ops;
  ++shared_.counters.fused_ops;
  shared_.finish({&entry, 1}, base::Status{});
}

bool Execution::advance() {
  const bool moved = executor_.advance();
  return (!transfers_.idle() && transfers_.advance()) || moved;
}

void Execution::park_all(const base::Status& why, bool lost) {
  executor_.park_all(why, lost);
  transfers_.park_all(why);
}

void Execution::execute(SetId set, FusedOp fused, std::vector<Entry> entries) {
  ExecutionSet& known = sets_.at(set);
  ++shared_.counters.fused_ops;
  shared_.usage.moves(fused.first().kind, payload_of(fused, entries), known.host->members->size());
  if (fused.first().arena != 0) ++shared_.counters.arena_ops;
  executor_.enqueue(known, std::move(fused), std::move(entries));
}

}  // namespace hvdlite::engine
