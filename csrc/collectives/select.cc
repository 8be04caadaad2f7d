#include "collectives/select.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "base/error.h"
#include "collectives/allreduce_hierarchical.h"
#include "collectives/chunking.h"

namespace hvdlite::collectives {

namespace {

constexpr std::string_view kAuto = "auto";
constexpr std::string_view kShared = "shm";
constexpr std::string_view kInline = "inline";
constexpr std::string_view kInArena = "push";
constexpr std::string_view kAdasum = "adasum";
constexpr std::string_view kCoded = "coded";
constexpr std::string_view kHierarchical = "hierarchical";

// Is direct faster than recursive doubling for few bytes? In direct a rank waits for two messages in turn, in recursive
// doubling for log2(p) or more. From three ranks on recursive doubling also sends each byte more often. With many ranks direct
// sends too many messages.
constexpr bool is_direct_faster(int ranks) { return ranks >= 3 && ranks <= 16; }

// Inputs of up to 1/kPreparedShare of Selection::recursive_doubling_max_bytes travel with announcements. That saves a delay,
// but the bytes are copied more often.
constexpr std::size_t kPreparedShare = 2;
// With more ranks than is_direct_faster allows, recursive doubling is taken only up to 1/kManyRanksShare of
// recursive_doubling_max_bytes, because it sends all bytes log2(p) times.
constexpr std::size_t kManyRanksShare = 8;

bool may_travel(std::size_t bytes, const Selection& selection) {
  return bytes <= selection.recursive_doubling_max_bytes / kPreparedShare;
}

// Up to 1/kInlineShare of a tile, allreduce_inline is faster than allreduce_shm: it waits once less, but does p times as many
// additions. The limit depends on the tile, so that small tiles (with many ranks, or in tests) behave like large ones.
constexpr std::size_t kInlineShare = 64;

// If sending a member's whole input to all other members takes at most this many bytes, each of them gets it whole. An exchange
// of parts would send fewer bytes, but it takes the delay of another message.
constexpr std::size_t kSmallPayloads = std::size_t{16} << 10;

template <typename Args>
void check(const AlgorithmList<Args>& list, const std::string& forced, bool deterministic) {
  if (forced == kAuto) return;
  const Algorithm<Args>& algorithm = list.find(forced);
  const std::string knob(list.knob);
  if (!algorithm.can_be_forced()) {
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      knob + "=" + forced + " cannot be forced: " + forced + " serves " +
                          std::string(algorithm.serves_only) + "; set " + knob + " to auto");
  }
  if (!deterministic || algorithm.layout_independent) return;
  std::string allowed;
  for (const Algorithm<Args>& other : list.algorithms) {
    if (other.layout_independent && other.can_be_forced()) {
      allowed += std::string(other.name) + ", ";
    }
  }
  throw base::Error(base::ErrorCode::kInvalidArgument,
                    knob + "=" + forced +
                        " contradicts HVDLITE_DETERMINISTIC=1: from 3 ranks on the bits of this "
                        "algorithm depend on where a tensor lies in a fused buffer; set " +
                        knob + " to one of " + allowed + "auto, or HVDLITE_DETERMINISTIC=0");
}

// Describes why this Comm has no shared memory of the kind that an algorithm needs: among all ranks on one host, or (if
// for_several_hosts) among the ranks of each of several hosts.
std::string obstacle(const Comm& comm, bool for_several_hosts) {
  std::set<int> hosts;
  for (int peer = 0; peer < comm.size(); ++peer) hosts.insert(comm.host_of(peer));
  const bool on_several = hosts.size() > 1;
  if (on_several && !for_several_hosts) return "its ranks are on several hosts";
  if (!on_several && for_several_hosts) return "its ranks are on one host";
  if (hosts.size() == static_cast<std::size_t>(comm.size())) {
    return "no two of its ranks are on one host";
  }
  return "ranks of one host share no memory: HVDLITE_SHARED_MEMORY is off, the machine gives none, "
         "or too many process sets use it already";
}

// The algorithm with this name. A single rank exchanges nothing: if that algorithm cannot run on one rank, the result is the
// first algorithm of the list, which runs on every Comm.
template <typename Args>
const Algorithm<Args>& pick(const AlgorithmList<Args>& list, std::string_view name,
                            const Comm& comm) {
  const Algorithm<Args>& algorithm = list.find(name);
  const bool lonely = comm.size() == 1 && algorithm.runs_on != nullptr && !algorithm.runs_on(comm);
  return lonely ? list.algorithms.front() : algorithm;
}

template <typename Args>
std::unique_ptr<Collective> start(const AlgorithmList<Args>& list, std::string_view name, Comm comm,
                                  Args args, const Selection& selection) {
  const Algorithm<Args>& algorithm = pick(list, name, comm);
  if (algorithm.runs_on != nullptr && !algorithm.runs_on(comm)) {
    const std::string knob(list.knob);
    throw base::Error(base::ErrorCode::kUnsupported,
                      knob + "=" + std::string(name) + " cannot serve process set " +
                          std::to_string(comm.set().id) + " (" +
                          obstacle(comm, algorithm.runs_on == shares_memory_on_hosts) + "); set " +
                          knob + " to auto, which takes only algorithms that can run there");
  }
  return algorithm.make(std::move(comm), std::move(args), selection.tuning);
}

std::string_view forced_or(const std::string& forced, std::string_view automatic) {
  return forced == kAuto ? automatic : std::string_view(forced);
}

bool is_on_one_host(const Comm& comm) {
  if (shares_memory(comm)) return true;
  for (int peer = 1; peer < comm.size(); ++peer) {
    if (comm.host_of(peer) != comm.host_of(0)) return false;
  }
  return true;
}

// The algorithm for a reduction with this codec. "" if nothing is coded: there is no codec, there is a single rank, or the
// codec codes only between hosts and all ranks are on one host.
std::string_view coded_algorithm(const base::Codec& codec, const Comm& comm) {
  if (!codec || comm.size() == 1) return "";
  if (codec.between == base::Between::kRanks) return kCoded;
  if (is_on_one_host(comm)) return "";
  return shares_memory_on_hosts(comm) ? kHierarchical : kCoded;
}

// May members prepare such an operation, if it is not too large?
bool may_prepare(base::OpKind kind, const Reduction& reduction, bool shares_memory,
                 const Selection& selection) {
  using base::OpKind;
  const bool is_coded =
      reduction.codec && (!shares_memory || reduction.codec.between == base::Between::kRanks);
  switch (kind) {
    case OpKind::kAllreduce:
      return (selection.allreduce == kAuto || (shares_memory && selection.allreduce == kInline)) &&
             reduction.op != base::ReduceOp::kAdasum && !is_coded;
    case OpKind::kReducescatter:
      return selection.reducescatter == kAuto && reduction.op != base::ReduceOp::kAdasum;
    case OpKind::kAllgather:
      return selection.allgatherv == kAuto;
    case OpKind::kBroadcast:
      return selection.broadcast == kAuto;
    case OpKind::kAlltoall:
      return selection.alltoallv == kAuto;
    default:
      return false;
  }
}

CommShape shape_of(const Comm& comm) {
  CommShape shape{.ranks = comm.size(),
                  .shared = shares_memory(comm),
                  .hosts = shares_memory_on_hosts(comm) ? comm.hosts()->hosts() : 0};
  if (shape.shared) shape.inline_bytes = comm.shared()->tile_bytes() / kInlineShare;
  return shape;
}

// Each chosen_... returns the name of an algorithm. bytes: of one rank's input; parts: the bytes of each rank's part.
std::string_view chosen_allreduce(std::size_t bytes, CommShape shape, const Selection& selection) {
  if (shape.shared) {
    return forced_or(selection.allreduce, bytes <= shape.inline_bytes ? kInline : kShared);
  }
  if (shape.hosts > 0) return forced_or(selection.allreduce, kHierarchical);
  std::string_view automatic = selection.deterministic ? "direct" : "ring";
  const std::size_t most = selection.recursive_doubling_max_bytes;
  if (bytes <= most) {
    if (is_direct_faster(shape.ranks)) {
      automatic = "direct";
    } else if (shape.ranks <= 2 || (bytes <= most / kManyRanksShare && !selection.deterministic)) {
      // With 2 ranks there is one addition an element, and all algorithms give the same bits.
      automatic = "recursive_doubling";
    }
  }
  return forced_or(selection.allreduce, automatic);
}

std::string_view chosen_reducescatter(std::size_t bytes, CommShape shape,
                                      const Selection& selection) {
  if (shape.shared) return forced_or(selection.reducescatter, kShared);
  const bool direct = selection.deterministic || bytes <= selection.recursive_doubling_max_bytes;
  return forced_or(selection.reducescatter, direct ? "direct" : "ring");
}

std::string_view chosen_allgatherv(const std::vector<std::size_t>& parts, CommShape shape,
                                   const Selection& selection) {
  if (shape.shared) return forced_or(selection.allgatherv, kShared);
  const std::size_t longest = *std::ranges::max_element(parts);
  const bool direct = is_direct_faster(shape.ranks) &&
                      parts.size() * longest <= selection.recursive_doubling_max_bytes;
  return forced_or(selection.allgatherv, direct ? "direct" : "ring");
}

std::string_view chosen_broadcast(std::size_t bytes, CommShape shape, const Selection& selection) {
  if (shape.shared) return forced_or(selection.broadcast, kShared);
  // Compares two times, in units of a segment's time: what the root of a binomial tree sends, and the length of the pipeline.
  const std::size_t segment = std::max<std::size_t>(selection.tuning.segment_bytes, 1);
  const std::size_t segments = pieces_in(bytes, segment);
  const auto size = static_cast<std::size_t>(shape.ranks);
  const auto levels = static_cast<std::size_t>(std::bit_width(size - 1));
  return forced_or(selection.broadcast,
                   segments + size < levels * segments + 2 ? "chain" : "binomial");
}

// Does an allreduce that is not prepared add in the same order as a prepared one (allreduce_prepared)?
bool adds_as_prepared(std::size_t bytes, const CommShape& shape, const Selection& selection) {
  if (shape.hosts > 0) return adds_in_order(shape.hosts, selection.tuning);
  return shape.ranks == 2 || chosen_allreduce(bytes, shape, selection) == "direct";
}

}  // namespace

Preparation preparation_of(base::OpKind kind, std::size_t bytes, const Reduction& reduction,
                           const CommShape& shape, const Selection& selection) {
  if (!may_prepare(kind, reduction, shape.shared, selection)) return Preparation::kNone;
  if (shape.shared) return bytes <= shape.prepared_bytes ? Preparation::kWhole : Preparation::kNone;
  const std::size_t to_others = static_cast<std::size_t>(shape.ranks - 1) * bytes;
  const bool is_small = to_others <= kSmallPayloads;
  const bool travels = may_travel(bytes, selection);
  switch (kind) {
    case base::OpKind::kAlltoall:
    case base::OpKind::kReducescatter:
      return travels ? Preparation::kParts : Preparation::kNone;
    case base::OpKind::kAllgather:
      return is_small || (shape.hosts == 0 && may_travel(to_others, selection))
                 ? Preparation::kWhole
                 : Preparation::kNone;
    case base::OpKind::kAllreduce:
      // Whether an operation is prepared depends on timing. So its bits must be the same, prepared or not.
      if (!adds_as_prepared(bytes, shape, selection)) return Preparation::kNone;
      if (is_small) return Preparation::kWhole;
      if (shape.hosts > 0 || !travels) return Preparation::kNone;
      return shape.ranks == 2 ? Preparation::kWhole : Preparation::kParts;
    case base::OpKind::kBroadcast:
      return is_small || (shape.ranks == 2 && travels) ? Preparation::kWhole : Preparation::kNone;
    default:
      return Preparation::kNone;
  }
}

bool takes_scattered(std::size_t bytes, const Reduction& reduction, const Comm& comm,
                     const Selection& selection) {
  if (reduction.op == base::ReduceOp::kAdasum) return true;
  if (!coded_algorithm(reduction.codec, comm).empty()) return true;
  return pick(kAllreduce, chosen_allreduce(bytes, shape_of(comm), selection), comm).scattered;
}

std::unique_ptr<Collective> start_allreduce(Comm comm, AllreduceArgs args,
                                            const Selection& selection) {
  const std::size_t bytes = args.count() * base::size_of(args.reduction.dtype);
  const std::string_view coded = coded_algorithm(args.reduction.codec, comm);
  if (coded.empty()) args.reduction.codec = {};
  const bool pushes = !args.mapped.empty() && selection.allreduce == kAuto && shares_memory(comm);
  const std::string_view name = args.reduction.op == base::ReduceOp::kAdasum ? kAdasum
                                : !coded.empty()                             ? coded
                                : pushes ? kInArena
                                         : chosen_allreduce(bytes, shape_of(comm), selection);
  return start(kAllreduce, name, std::move(comm), std::move(args), selection);
}

std::unique_ptr<Collective> start_reducescatter(Comm comm, ReducescatterArgs args,
                                                const Selection& selection) {
  const std::size_t bytes = total_of(args.counts) * base::size_of(args.reduction.dtype);
  const std::string_view name = chosen_reducescatter(bytes, shape_of(comm), selection);
  return start(kReducescatter, name, std::move(comm), std::move(args), selection);
}

std::unique_ptr<Collective> start_allgatherv(Comm comm, AllgathervArgs args,
                                             const Selection& selection) {
  const std::string_view name = chosen_allgatherv(args.bytes, shape_of(comm), selection);
  return start(kAllgatherv, name, std::move(comm), std::move(args), selection);
}

std::unique_ptr<Collective> start_broadcast(Comm comm, BroadcastArgs args,
                                            const Selection& selection) {
  const std::string_view name = chosen_broadcast(args.bytes, shape_of(comm), selection);
  return start(kBroadcast, name, std::move(comm), args, selection);
}

std::unique_ptr<Collective> start_alltoallv(Comm comm, AlltoallvArgs args,
                                            const Selection& selection) {
  const std::string_view name =
      forced_or(selection.alltoallv, shares_memory(comm) ? kShared : "pairwise");
  return start(kAlltoallv, name, std::move(comm), std::move(args), selection);
}

std::unique_ptr<Collective> start_barrier(Comm comm, const Selection& selection) {
  const std::string_view name =
      forced_or(selection.barrier, shares_memory(comm) ? kShared : "dissemination");
  return start(kBarrier, name, std::move(comm), Barrier{}, selection);
}

void check_selection(const Selection& selection) {
  check(kAllreduce, selection.allreduce, selection.deterministic);
  check(kReducescatter, selection.reducescatter, selection.deterministic);
  check(kAllgatherv, selection.allgatherv, selection.deterministic);
  check(kBroadcast, selection.broadcast, selection.deterministic);
  check(kAlltoallv, selection.alltoallv, selection.deterministic);
  check(kBarrier, selection.barrier, selection.deterministic);
}

}  // namespace hvdlite::collectives
