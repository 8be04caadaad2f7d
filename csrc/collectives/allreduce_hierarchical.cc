// Hierarchical allreduce, for ranks on several hosts. The ranks of each host reduce in shared memory. For each slice, its
// owners on all hosts exchange their partial sums in messages. Then the ranks of each host copy the results out of shared
// memory.
//
// What moves where, two hosts of two ranks, one round of two slices a b ("a01" is a of ranks 0 and 1 added up):
//
//                 host 0: rank 0      rank 1              host 1: rank 2      rank 3
//   reduce        a01                 b01                 a23                 b23              shared memory
//   exchange      a01 <-> a23 of 2    b01 <-> b23 of 3    a23 <-> a01 of 0    b23 <-> b01 of 1   messages
//   holds         a                   b                   a                   b
//   publish       a b                 a b                 a b                 a b              shared memory
//
// Hosts may have different numbers of members. The first q members of each host own slices, and the others only contribute and
// receive. q is the number of members of the smallest host, and less for small buffers (plan_slices). The exchange is another
// allreduce (ring, direct or recursive doubling) among the i-th members of all hosts. The q exchanges run in parallel, so every
// host sends and receives as few bytes as possible, and uses several cores.
//
// A large buffer is processed in rounds, and three rounds overlap: while the hosts exchange round k, round k-1 is published and
// round k+1 is reduced. Reduce and publish use the window through two separate channels (SharedChannel), and operations take
// turns in each of them. So the next operation's reduce need not wait for this operation's publish, and the network stays busy
// between operations as well.
//
//   channel 1   reduce 0  reduce 1            reduce 2            ...   next operation's reduce 0
//   wire                  exchange 0 -------- exchange 1 -------- exchange 2 --------
//   channel 2                                 publish 0           publish 1           publish 2
//
// Cost for m hosts of n members, of which q are owners, and S bytes: reduce and publish in shared memory (host_stages.h; about
// (4 + (n+1)/q) S loaded and stored by an owner, 4 S by another member), and between hosts for each host 2 alpha + 2(m-1)/m S
// beta with direct, 2(m-1) alpha + 2(m-1)/m S beta with a ring, log2(m) (alpha + S beta) with recursive doubling. A ring of all
// p ranks also sends 2(p-1)/p S over each host's link, but it takes 2(p-1) steps, and its slow steps between hosts delay the
// steps inside hosts.
//
// 16-bit floats: partial sums travel between hosts as float32 and are rounded once, at the end, like everywhere else; results
// travel as 16 bits. So with direct or a ring 3(m-1)/m S instead of 2(m-1)/m S cross each host's link. Rounding the hosts' sums
// to 16 bits would save a third of these bytes. But each host would add an error of up to half a unit in the last place to
// every result, and the engine promises results that are rounded once. The error would be largest where gradients of different
// hosts have opposite signs.
//
// It cannot deadlock. Steps of round k wait only for steps of rounds up to k. The exchange of round k waits for the reduce of
// round k on all its owners. The publish of round k waits for the exchange of round k and the publish of round k-1. The reduce
// of round k waits for the publish of round k - kSlots (whose slot it uses) and the reduce of round k-1. The pipelines make
// every step that is allowed (shared_collective.h), the exchanges run as soon as they can, and operations take their turns in
// the same order on all members of a host.
//
// In place: the owners have read all of a member's contribution to a round when they have reduced the round, which is before
// any of them publishes it.
//
// Exchanges of different rounds do not mix. Those of even and odd rounds use different halves of the channels for messages
// (Comm::half). A rank posts round k+2 after its round k is complete, so that sends and receives of these two match in order.
// Exchanges of different owners have no pair of ranks in common.
//
// With a codec the exchange is allreduce_coded, so only messages between hosts are coded, and slices begin and end with blocks
// of the codec. A round has more elements with a codec, so that its messages between hosts have as many bytes as without one.
//
// All ranks get the same bits because the exchange gives the owners of a slice on all hosts the same bits, and the other ranks
// copy these bits. A host's contributions to an element are added in rank order, at any place in the buffer. So the bits do not
// depend on the layout if the hosts' sums, too, are added in the order of the hosts (adds_in_order). This is the case with up
// to kFewHosts hosts, and with more hosts if Tuning::deterministic is set. The bits do depend on which ranks share a host.
//
// Source: for the parts, Thakur, Rabenseifner and Gropp (see allreduce_direct.cc). Reducing inside hosts first is in Jia et
// al., Highly scalable deep learning training system with mixed-precision (2018); that each host has several owners, which send
// in parallel, is in the hierarchical rings of NVIDIA's NCCL.
#include "collectives/allreduce_hierarchical.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "base/error.h"
#include "collectives/algorithms.h"
#include "collectives/staging.h"

namespace hvdlite::collectives {

namespace {

// Up to this number of hosts, two steps with a message to each other host take less time than more steps with fewer messages.
constexpr int kFewHosts = 8;

// In this file a segment is 1/kSegmentShare of Tuning::segment_bytes, and pieces of the exchange have at most half a segment,
// because small messages wait less. All owners of a host share the host's link, and what they have sent waits in the link's
// queue. Open MPI's TCP sends a message of more than 64 KiB only after an answer of the receiver. The answer waits in the queue
// of the receiver's link, behind the data that the receiver's host sends at the same time.
constexpr std::size_t kSegmentShare = 4;

class AllreduceHierarchical final : public Collective {
 public:
  AllreduceHierarchical(const Comm& comm, AllreduceArgs args, const SlicePlan& plan,
                        const Tuning& tuning)
      : reduction_(args.reduction),
        tuning_(tuning),
        reducer_(reduction_, tuning.isa),
        job_{plan, std::move(args.parts), {}, {}, {}},
        number_(comm.shared()->index()),
        partials_(tuning.staging, kSlots, owned_bytes(reducer_.partial_bytes())),
        results_(tuning.staging, kSlots, same_type() ? 0 : owned_bytes(reducer_.result_bytes())),
        between_(owns() ? owners(comm, number_) : comm),
        reduce_(comm, in_host(tuning), reducer_, job_),
        publish_(comm.on_second_channel(), in_host(tuning), reducer_.result_bytes(), job_) {
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      job_.partials[slot] = partials_.take();
      job_.results[slot] = same_type() ? job_.partials[slot] : results_.take();
    }
  }

  CodedBytes coded_bytes() const override { return coded_; }

  bool advance() override {
    reduce_.advance();
    exchange();
    // A member that owns no slice may get all results before it has seen that its host has reduced all rounds. Then it still
    // has to end its turn of the first channel.
    return publish_.advance() && reduce_.advance();
  }

 private:
  // Few steps in one pass, and no second poll, so that the exchange between hosts need not wait.
  static Tuning in_host(Tuning tuning) {
    tuning.max_steps = std::min(tuning.max_steps, 4);
    tuning.spin = 0;
    return tuning;
  }

  static Comm owners(const Comm& comm, int number) {
    return comm.part(comm.hosts()->members_with_number(number), comm.hosts()->own());
  }
  bool owns() const { return number_ < job_.plan.owners; }
  bool same_type() const {
    return kernels::accumulator_of(reduction_.dtype, reduction_.op) == reduction_.dtype;
  }
  std::size_t owned_bytes(std::size_t element_bytes) const {
    return owns() ? job_.plan.largest() * element_bytes : 0;
  }

  // Starts the exchange of every round that is reduced, and advances those under way.
  void exchange() {
    for (; started_ < job_.done.reduced; ++started_) {
      HVD_CHECK(!exchanges_[started_ % kSlots]);
      if (owns()) exchanges_[started_ % kSlots] = make_exchange(started_);
    }
    bool first = true;
    for (std::size_t round = job_.done.finished; round < started_; ++round) {
      std::unique_ptr<Collective>& exchange = exchanges_[round % kSlots];
      if (exchange && exchange->advance()) {
        coded_.before += exchange->coded_bytes().before;
        coded_.after += exchange->coded_bytes().after;
        exchange.reset();
      }
      first = first && !exchange;
      if (first) job_.done.finished = round + 1;
    }
  }

  std::unique_ptr<Collective> make_exchange(std::size_t round) {
    const std::size_t slot = round % kSlots;
    const Range slice = job_.plan.slice(round, number_);
    AllreduceArgs args;
    args.parts = parts_of(slice, job_.partials[slot], job_.results[slot]);
    args.reduction = reduction_;
    args.reduction.from_partials = true;
    const std::string_view name =
        reduction_.codec
            ? "coded"
            : algorithm_between_hosts(between_.size(), slice.count * reducer_.partial_bytes(),
                                      same_type(), tuning_);
    Tuning tuning = tuning_;
    tuning.segment_bytes = std::max<std::size_t>(tuning.segment_bytes / 2, 1);
    return kAllreduce.find(name).make(between_.half(static_cast<int>(slot)), std::move(args),
                                      tuning);
  }

  // A slice of the buffer in this member's slot; with a codec the tensors stay apart, because a block never spans two tensors.
  std::vector<AllreducePart> parts_of(const Range& slice, std::byte* partial,
                                      std::byte* result) const {
    if (!job_.plan.blocks) return {{partial, result, slice.count}};
    std::vector<AllreducePart> parts;
    job_.plan.blocks->walk(slice, [&](std::size_t, std::size_t, std::size_t n, std::size_t) {
      parts.push_back({partial, result, n});
      partial += n * reducer_.partial_bytes();
      result += n * reducer_.result_bytes();
    });
    return parts;
  }

  Reduction reduction_;
  Tuning tuning_;
  TileReducer reducer_;
  HostJob job_;
  int number_;  // of this member on its host
  Staging partials_;
  Staging results_;
  Comm between_;  // the owners with this number, on all hosts
  HostReduce reduce_;
  HostPublish publish_;
  std::array<std::unique_ptr<Collective>, kSlots> exchanges_;
  std::size_t started_ = 0;
  CodedBytes coded_;
};

}  // namespace

SlicePlan plan_slices(const AllreduceArgs& args, const HostMap& hosts, const Tuning& tuning) {
  const std::size_t count = args.count();
  const std::size_t element_bytes = base::size_of(args.reduction.dtype);
  const auto num_hosts = static_cast<std::size_t>(hosts.hosts());
  // The least bytes of a slice. With smaller slices, another owner's messages would cost more time than the other owners'
  // shorter messages save.
  const std::size_t smallest = std::max<std::size_t>(tuning.segment_bytes / 16, 1) * num_hosts;
  // The most bytes of a slice: a few segments for each host, so that the exchange of a round is a pipeline of its own.
  const std::size_t largest =
      std::max<std::size_t>(std::max<std::size_t>(4, num_hosts) * tuning.segment_bytes / 2, 1);
  SlicePlan plan;
  if (args.reduction.codec) {
    plan.blocks = std::make_shared<const BlockLayout>(args.parts, args.reduction.codec);
  }
  const std::size_t bytes =
      plan.blocks ? plan.blocks->encoded_bytes({0, count}) : count * element_bytes;
  plan.owners = static_cast<int>(
      std::clamp<std::size_t>(bytes / smallest, 1, static_cast<std::size_t>(hosts.fewest())));
  const auto owners = static_cast<std::size_t>(plan.owners);
  plan.cut = {count, pieces_in(bytes, largest * owners), owners,
              alignment_grain(count, plan.owners, element_bytes)};
  return plan;
}

bool adds_in_order(int hosts, const Tuning& tuning) {
  return hosts <= kFewHosts || tuning.deterministic;
}

std::string_view algorithm_between_hosts(int hosts, std::size_t partial_bytes, bool same_type,
                                         const Tuning& tuning) {
  // Two hosts: recursive doubling takes one step, and direct takes two. Both send the same number of bytes if results have the
  // type of partials; otherwise direct sends fewer. With recursive doubling both hosts add all elements, and begin to add when
  // they have received everything.
  if (hosts <= 2) {
    const std::size_t limit = same_type ? tuning.segment_bytes : tuning.segment_bytes / 16;
    return partial_bytes <= limit ? "recursive_doubling" : "direct";
  }
  // Direct takes two steps for any number of hosts, and sends as many bytes as a ring, but a message to each other host.
  if (adds_in_order(hosts, tuning)) return "direct";
  return partial_bytes <= tuning.segment_bytes ? "recursive_doubling" : "ring";
}

std::unique_ptr<Collective> allreduce_hierarchical(Comm comm, AllreduceArgs args,
                                                   const Tuning& tuning) {
  HVD_CHECK(comm.shared() != nullptr && comm.hosts() != nullptr);
  Tuning between = tuning;
  between.segment_bytes = std::max<std::size_t>(tuning.segment_bytes / kSegmentShare, 1);
  const SlicePlan plan = plan_slices(args, *comm.hosts(), between);
  return std::make_unique<AllreduceHierarchical>(comm, std::move(args), plan, between);
}

}  // namespace hvdlite::collectives
