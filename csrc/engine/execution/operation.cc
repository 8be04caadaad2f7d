// How a tag and a tile number (the number of a tile of the window) are composed, from the high bits to the low ones. The table
// has the number of bits of each field. A tag has tag_bits() bits in all, and a tile number has 64:
//
//    tag            | set id: 10 | number of the operation: the rest | channel: 3 |
//    tile number    | generation of the region: 24 | tiles of the set: 40 |
//
// Example for tags of 23 bits: operation 5 of set 2, channel 1, has the tag ((2 << 10) + 5) * 8 + 1 = 16425. The numbers of
// operations in tags are 0 to 1022 (below operation_limit()), so operation 1028 of set 2 has the same tag on channel 1. The
// number 1023, whose bits are all set, belongs to payloads of point to point, with the set id 0.
//
// The tags of two operations that run at the same time differ in the set id or in the number, and the tags of two message
// streams of one operation differ in the channel. So no rank takes a message of one operation or stream for a message of
// another.
//
// A rank reads another member's tile when that member's flag in the region has reached the tile's number. Each set that gets a
// region has a larger generation than all sets that had the region before. So the flags that earlier sets have left in the
// region are smaller than the tile numbers of the new set, and only mean "not yet". Sets are numbered in the order in which
// they are added (SetId::epoch), but this number cannot serve as the generation: the set of all ranks has the smallest epoch,
// and sometimes takes a region that other sets had before (share_staging).
#include "engine/execution/operation.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "transport/host_window.h"

namespace hvdlite::engine {

using base::OpKind;
using base::ReduceOp;

namespace {

// The generation begins at this bit. The number of a tile within one set fits into the lower bits.
constexpr int kGenerationShift = 40;
// As many bits as the ids need: kMaxSets (negotiation/set_changes.cc) limits the ids.
constexpr int kSetBits = 10;

int operation_bits(const transport::Transport& transport) {
  return transport.tag_bits() - collectives::kChannelBits - kSetBits;
}

// In tags, operations have numbers below this limit. The payloads of sends and receives have the limit itself in the place of
// such a number.
std::uint32_t operation_limit(const transport::Transport& transport) {
  return (std::uint32_t{1} << operation_bits(transport)) - 1;
}

// Null if this rank is no member of the set.
std::shared_ptr<collectives::SharedChannel> make_channel(transport::Transport& transport,
                                                         const ProcessSet& set,
                                                         const Regions::Region& region) {
  const int here = transport.host_of(transport.rank());
  // For each member on this host: its place in the set, and its rank on the host.
  std::vector<int> local, local_ranks;
  for (std::size_t i = 0; i < set.members->size(); ++i) {
    const int member = (*set.members)[i];
    if (transport.host_of(member) != here) continue;
    local.push_back(static_cast<int>(i));
    local_ranks.push_back(transport.local_rank_of(member));
  }
  const auto mine = std::ranges::find(local, set.index);
  if (mine == local.end()) return nullptr;
  const auto index = static_cast<int>(mine - local.begin());
  return std::make_shared<collectives::SharedChannel>(
      *transport.window(), region.number, std::move(local), std::move(local_ranks), index,
      region.generation << kGenerationShift, region.departures);
}

}  // namespace

void check_tags(const transport::Transport& transport) {
  const int needed =
      collectives::kChannelBits + kSetBits + static_cast<int>(std::bit_width(4 * kMaxRunning));
  if (transport.tag_bits() >= needed) return;
  throw base::Error(base::ErrorCode::kUnsupported,
                    "MPI's tags have " + std::to_string(transport.tag_bits()) +
                        " bits (MPI_TAG_UB), and hvdlite needs " + std::to_string(needed) +
                        "; use another MPI, or another transport of this MPI");
}

std::uint32_t tag_of(const transport::Transport& transport, SetId set, std::uint32_t operation) {
  const auto id = static_cast<std::uint32_t>(set.id) & ((std::uint32_t{1} << kSetBits) - 1);
  return ((id << operation_bits(transport)) | (operation % operation_limit(transport)))
         << collectives::kChannelBits;
}

std::uint32_t point_to_point_tag(const transport::Transport& transport) {
  return operation_limit(transport) << collectives::kChannelBits;
}

SharedRegions share(transport::Transport& transport, const ProcessSet& set,
                    const Regions::Grant& regions) {
  SharedRegions shared;
  if (regions.first) shared.channel = make_channel(transport, set, *regions.first);
  if (!regions.second) return shared;
  shared.second_channel = make_channel(transport, set, *regions.second);
  std::vector<int> host_of;
  host_of.reserve(set.members->size());
  for (const int member : *set.members) host_of.push_back(transport.host_of(member));
  shared.hosts = std::make_shared<const collectives::HostMap>(host_of, set.index);
  return shared;
}

collectives::Reduction reduction_of(const Request& request, std::int64_t divisor) {
  return {.dtype = request.dtype,
          .op = request.op,
          .prescale = request.prescale,
          .postscale = request.postscale,
          .divisor = request.op == ReduceOp::kAverage ? divisor : 1,
          .codec = request.codec};
}

collectives::Reduction reduction_of(const AgreedOperation& agreed, int ranks) {
  return reduction_of(*agreed.request, agreed.divisor > 0 ? agreed.divisor : ranks);
}

// Every class of operation uses this constructor. It writes into the completions how many members contribute, which is known
// from the agreement. A joined rank has no completion.
Operation::Operation(QueuedOperation what) : what_(std::move(what)) {
  for (std::size_t i = 0; i < entries().size(); ++i) {
    const AgreedOperation& part = fused().parts[i];
    bytes_ += part.request->bytes();
    if (entries()[i].request) entries()[i].completion->contributors = part.contributors;
  }
}

std::unique_ptr<collectives::Collective> Operation::start_with_rows(
    const Extents& extents, const void* input, void* output, const collectives::Comm& comm,
    const collectives::Selection& selection) const {
  switch (first_request().kind) {
    case OpKind::kAllgather:
      return collectives::start_allgatherv(comm, {input, output, extents.bytes(extents.rows)},
                                           selection);
    case OpKind::kAlltoall:
      return collectives::start_alltoallv(
          comm, {input, output, extents.bytes(extents.sent), extents.bytes(extents.rows)},
          selection);
    default:
      return collectives::start_reducescatter(comm,
                                              {input, output, extents.elements(extents.rows),
                                               reduction_of(fused().parts.front(), comm.size())},
                                              selection);
  }
}

// An allreduce for which no rank has a value is never fused (plan_fusion), so it is the only part of its FusedOp. So
// has_no_value() looks at the first part only.
bool Operation::has_no_value() const {
  return fused().parts.front().contributors == 0 && first_request().kind == OpKind::kAllreduce;
}

}  // namespace hvdlite::engine
