// hvdlite_simulate: whole collectives of simulated ranks, stepped by one thread.
//
// Every rank gets an endpoint of one in-process fabric and its state machine; a seeded generator
// picks who advances next, starves some ranks for a while, and reports some completions late, so
// that channels and windows run out of step as they do on a real machine. The same seed gives the
// same schedule. A collective that cannot go on is found, not waited for: if nothing moved during a
// full round in which every unfinished rank was asked and no completion was withheld, nothing ever
// will.
#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "collectives/registry.h"
#include "engine/c_api.h"
#include "transport/fickle.h"
#include "transport/inproc.h"

namespace hvdlite::engine {

namespace {

using base::Error;
using base::ErrorCode;
using base::OpKind;
using collectives::Collective;
using collectives::Comm;
using collectives::Tuning;

// The arguments of hvdlite_simulate.
struct Simulation {
  OpKind kind;
  const char* algorithm;
  int ranks;
  std::uint64_t seed;
  int isa;  // negative: another one on each rank
  std::int64_t segment_bytes;
  collectives::Reduction reduction;
  int root;
  const std::int64_t* counts;
  const void* const* inputs;
  void* const* outputs;
};

std::size_t size_from(std::int64_t value, const char* what) {
  if (value >= 0) return static_cast<std::size_t>(value);
  throw Error(ErrorCode::kInvalidArgument,
              std::string(what) + " must not be negative, but is " + std::to_string(value));
}

// `ranks` counts from place `first` on, `stride` apart.
std::vector<std::size_t> sizes_from(const Simulation& run, std::size_t first, std::size_t stride) {
  std::vector<std::size_t> sizes;
  sizes.reserve(static_cast<std::size_t>(run.ranks));
  for (std::size_t i = 0; i < static_cast<std::size_t>(run.ranks); ++i) {
    sizes.push_back(size_from(run.counts[first + i * stride], "a count"));
  }
  return sizes;
}

Tuning tuning_of(const Simulation& run, int rank) {
  Tuning tuning;
  tuning.segment_bytes = size_from(run.segment_bytes, "segment_bytes");
  tuning.isa = static_cast<kernels::Isa>(std::max(run.isa, 0));
  for (int i = 0; run.isa < 0 && i < rank; ++i) {
    const auto wider = static_cast<kernels::Isa>(static_cast<int>(tuning.isa) + 1);
    const bool last = tuning.isa == kernels::best_isa();
    tuning.isa = last || !kernels::isa_supported(wider) ? kernels::Isa::kScalar : wider;
  }
  return tuning;
}

template <typename Args>
std::unique_ptr<Collective> make(std::span<const collectives::Algorithm<Args>> algorithms,
                                 const Simulation& run, Comm comm, Args args) {
  const Tuning tuning = tuning_of(run, comm.rank());
  return find_algorithm(algorithms, run.algorithm).make(std::move(comm), std::move(args), tuning);
}

std::unique_ptr<Collective> start(const Simulation& run, Comm comm) {
  const int rank = comm.rank();
  const auto size = static_cast<std::size_t>(run.ranks);
  const void* const input = run.inputs[rank];
  void* const output = run.outputs[rank];
  switch (run.kind) {
    case OpKind::kAllreduce: {
      const std::size_t count = size_from(run.counts[0], "a count");
      return make<collectives::AllreduceArgs>(collectives::allreduce_algorithms(), run,
                                              std::move(comm),
                                              {{{input, output, count}}, run.reduction});
    }
    case OpKind::kReducescatter:
      return make<collectives::ReducescatterArgs>(
          collectives::reducescatter_algorithms(), run, std::move(comm),
          {input, output, sizes_from(run, 0, 1), run.reduction});
    case OpKind::kAllgather:
      return make<collectives::AllgathervArgs>(collectives::allgatherv_algorithms(), run,
                                               std::move(comm),
                                               {input, output, sizes_from(run, 0, 1)});
    case OpKind::kBroadcast: {
      const std::size_t bytes = size_from(run.counts[0], "a count");
      const bool copies = rank == run.root && input != nullptr && input != output && bytes > 0;
      if (copies) {
        std::copy_n(static_cast<const std::byte*>(input), bytes, static_cast<std::byte*>(output));
      }
      return make<collectives::BroadcastArgs>(collectives::broadcast_algorithms(), run,
                                              std::move(comm), {output, bytes, run.root});
    }
    case OpKind::kAlltoall: {
      const auto mine = static_cast<std::size_t>(rank);
      return make<collectives::AlltoallvArgs>(
          collectives::alltoallv_algorithms(), run, std::move(comm),
          {input, output, sizes_from(run, mine * size, 1), sizes_from(run, mine, size)});
    }
    case OpKind::kBarrier:
      return make<collectives::Barrier>(collectives::barrier_algorithms(), run, std::move(comm),
                                        {});
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      break;
  }
  throw Error(ErrorCode::kInvalidArgument, "operation kind " +
                                               std::to_string(static_cast<int>(run.kind)) +
                                               " has no algorithm to simulate");
}

class Scheduler {
 public:
  explicit Scheduler(const Simulation& run)
      : kind_(run.kind),
        draw_(run.seed),
        stepped_(static_cast<std::size_t>(run.ranks), false),
        fabric_(transport::make_fabric({run.ranks, {}, 0, 0})) {
    auto members = std::make_shared<std::vector<int>>(static_cast<std::size_t>(run.ranks));
    std::iota(members->begin(), members->end(), 0);
    for (int rank = 0; rank < run.ranks; ++rank) {
      endpoints_.push_back(
          std::make_unique<transport::FickleTransport>(connect(fabric_, rank), draw_, fickle_));
    }
    constexpr std::uint32_t kTag = 5u << collectives::kChannelBits;
    for (int rank = 0; rank < run.ranks; ++rank) {
      Comm comm(*endpoints_[static_cast<std::size_t>(rank)], members, rank, kTag);
      machines_.push_back(start(run, std::move(comm)));
      unfinished_.push_back(rank);
    }
  }

  void run() {
    while (!unfinished_.empty()) {
      const std::uint64_t before = transport::activity(*fabric_);
      const std::size_t finished = step_some();
      if (finished > 0 || transport::activity(*fabric_) != before) continue;
      step_all_or_give_up();
    }
  }

 private:
  // As many steps as ranks, of ranks drawn by chance: some several times, some not at all.
  std::size_t step_some() {
    std::size_t finished = 0;
    for (std::size_t steps = unfinished_.size(); steps > 0 && !unfinished_.empty(); --steps) {
      finished += step(draw_() % unfinished_.size());
    }
    return finished;
  }

  void step_all_or_give_up() {
    fickle_ = false;
    const std::uint64_t before = transport::activity(*fabric_);
    std::size_t finished = 0;
    for (std::size_t place = unfinished_.size(); place-- > 0;) finished += step(place);
    if (finished == 0 && transport::activity(*fabric_) == before) give_up();
    fickle_ = true;
  }

  std::size_t step(std::size_t place) {
    const auto rank = static_cast<std::size_t>(unfinished_[place]);
    Collective& machine = *machines_[rank];
    entered_ += stepped_[rank] ? 0 : 1;
    stepped_[rank] = true;
    if (!machine.advance()) return 0;
    HVD_CHECK(machine.advance());                   // finished is for ever
    HVD_CHECK(endpoints_[rank]->under_way() == 0);  // the caller may free its buffers now
    HVD_CHECK(kind_ != OpKind::kBarrier || entered_ == machines_.size());
    unfinished_[place] = unfinished_.back();
    unfinished_.pop_back();
    return 1;
  }

  [[noreturn]] void give_up() {
    std::sort(unfinished_.begin(), unfinished_.end());
    std::string ranks;
    for (const int rank : unfinished_) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    throw Error(ErrorCode::kInternal,
                "stuck: nothing moves any more, and these ranks have not finished: " + ranks);
  }

  OpKind kind_;
  std::mt19937_64 draw_;
  std::vector<bool> stepped_;  // ranks that have advanced at least once, and how many
  std::size_t entered_ = 0;
  bool fickle_ = true;
  std::shared_ptr<transport::Fabric> fabric_;
  std::vector<std::unique_ptr<Collective>> machines_;
  // Declared after the machines: endpoints go first and withdraw what points into them.
  std::vector<std::unique_ptr<transport::FickleTransport>> endpoints_;
  std::vector<int> unfinished_;
};

void check(const Simulation& run) {
  require(run.algorithm != nullptr, "the algorithm is null");
  require(run.ranks >= 1, "ranks must be at least 1, but is " + std::to_string(run.ranks));
  require(run.inputs != nullptr && run.outputs != nullptr, "inputs or outputs is null");
  require(run.kind == OpKind::kBarrier || run.counts != nullptr, "counts is null");
  require(run.root >= 0 && run.root < run.ranks, "root " + std::to_string(run.root) +
                                                     " is not one of the ranks 0-" +
                                                     std::to_string(run.ranks - 1));
  require(run.isa <= static_cast<int>(kernels::Isa::kAvx512),
          "isa " + std::to_string(run.isa) + " is not one of 0 scalar, 1 avx2, 2 avx512");
}

template <typename Args>
std::string names_of(std::span<const collectives::Algorithm<Args>> algorithms) {
  std::string names;
  for (const auto& algorithm : algorithms) {
    names += (names.empty() ? "" : ",") + std::string(algorithm.name);
  }
  return names;
}

const char* names_of(OpKind kind) {
  static const std::string allreduce = names_of(collectives::allreduce_algorithms());
  static const std::string allgather = names_of(collectives::allgatherv_algorithms());
  static const std::string broadcast = names_of(collectives::broadcast_algorithms());
  static const std::string alltoall = names_of(collectives::alltoallv_algorithms());
  static const std::string reducescatter = names_of(collectives::reducescatter_algorithms());
  static const std::string barrier = names_of(collectives::barrier_algorithms());
  switch (kind) {
    case OpKind::kAllreduce:
      return allreduce.c_str();
    case OpKind::kAllgather:
      return allgather.c_str();
    case OpKind::kBroadcast:
      return broadcast.c_str();
    case OpKind::kAlltoall:
      return alltoall.c_str();
    case OpKind::kReducescatter:
      return reducescatter.c_str();
    case OpKind::kBarrier:
      return barrier.c_str();
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      break;
  }
  return nullptr;
}

}  // namespace

}  // namespace hvdlite::engine

using hvdlite::base::DType;
using hvdlite::base::OpKind;
using hvdlite::base::ReduceOp;

int hvdlite_simulate(int kind, const char* algorithm, int ranks, uint64_t seed, int isa,
                     int64_t segment_bytes, int dtype, int op, double prescale, double postscale,
                     int64_t divisor, int root, const int64_t* counts, const void* const* inputs,
                     void* const* outputs) {
  return hvdlite::engine::guarded([&] {
    if (kind < 0 || kind >= hvdlite::base::kNumOpKinds || dtype < 0 ||
        dtype >= hvdlite::base::kNumDTypes || op < 0 || op > static_cast<int>(ReduceOp::kProduct)) {
      throw hvdlite::base::Error(hvdlite::base::ErrorCode::kInvalidArgument,
                                 "unknown kind " + std::to_string(kind) + ", dtype " +
                                     std::to_string(dtype) + " or op " + std::to_string(op));
    }
    const hvdlite::engine::Simulation run{
        static_cast<OpKind>(kind),
        algorithm,
        ranks,
        seed,
        isa,
        segment_bytes,
        {static_cast<DType>(dtype), static_cast<ReduceOp>(op), prescale, postscale, divisor},
        root,
        counts,
        inputs,
        outputs};
    hvdlite::engine::check(run);
    hvdlite::engine::Scheduler(run).run();
  });
}

const char* hvdlite_algorithms(int kind) {
  if (kind < 0 || kind >= hvdlite::base::kNumOpKinds) return nullptr;
  return hvdlite::engine::names_of(static_cast<OpKind>(kind));
}
