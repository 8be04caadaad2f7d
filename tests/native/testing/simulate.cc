// Runs collectives on simulated ranks, stepped by one thread in any order. Over 400 lines, because all collectives share the job.
#include "testing/simulate.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "c_api/c_api.h"
#include "collectives/registry.h"
#include "testing/fickle.h"
#include "transport/inproc.h"

namespace hvdlite::testing {

namespace {

using base::Error;
using base::ErrorCode;
using base::OpKind;
using collectives::Collective;
using collectives::Comm;
using collectives::Tuning;

using engine::require;
using Step = SimulatedStep;

std::size_t size_from(std::int64_t value, const char* what) {
  if (value >= 0) return static_cast<std::size_t>(value);
  throw Error(ErrorCode::kInvalidArgument,
              std::string(what) + " must not be negative, but is " + std::to_string(value));
}

// `ranks` counts from place `first` on, `stride` apart.
std::vector<std::size_t> sizes_from(const Step& step, int ranks, std::size_t first,
                                    std::size_t stride) {
  std::vector<std::size_t> sizes;
  sizes.reserve(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < static_cast<std::size_t>(ranks); ++i) {
    sizes.push_back(size_from(step.counts[first + i * stride], "a count"));
  }
  return sizes;
}

collectives::Reduction reduction_of(const Step& step) {
  collectives::Reduction reduction{static_cast<base::DType>(step.dtype),
                                   static_cast<base::ReduceOp>(step.op), step.prescale,
                                   step.postscale, step.divisor};
  reduction.codec = {static_cast<base::CodecKind>(step.codec), base::Between::kRanks, step.block};
  return reduction;
}

Tuning tuning_of(const Simulation& run, int rank) {
  Tuning tuning;
  tuning.segment_bytes = size_from(run.segment_bytes, "segment_bytes");
  tuning.deterministic = run.deterministic;
  tuning.isa = static_cast<kernels::Isa>(std::max(run.isa, 0));
  // Some ranks do one thing at a time, so that the others get in between.
  tuning.max_steps = 1 + static_cast<int>((run.seed + static_cast<std::uint64_t>(rank)) % 4);
  // Some write every result past the caches, some every tile.
  tuning.streaming_bytes = (run.seed + static_cast<std::uint64_t>(rank)) % 3 == 0 ? 1 : 0;
  const bool past = (run.seed / 3 + static_cast<std::uint64_t>(rank)) % 3 == 0;
  tuning.tile_stores = past ? collectives::TileStores::kStreaming : collectives::TileStores::kAuto;
  for (int i = 0; run.isa < 0 && i < rank; ++i) {
    const auto wider = static_cast<kernels::Isa>(static_cast<int>(tuning.isa) + 1);
    const bool last = tuning.isa == kernels::best_isa();
    tuning.isa = last || !kernels::isa_supported(wider) ? kernels::Isa::kScalar : wider;
  }
  return tuning;
}

template <typename Args>
std::unique_ptr<Collective> make(const collectives::AlgorithmList<Args>& list, const Step& step,
                                 Comm comm, Args args, const Tuning& tuning) {
  return list.find(step.algorithm).make(std::move(comm), std::move(args), tuning);
}

bool in_arena(const Step& step) { return step.algorithm == "push"; }

// Where a rank lets the result of an allreduce be made, and where it is wanted.
struct OpenResult {
  std::size_t bytes = 0;
  std::byte* data = nullptr;  // null: where it is wanted
  void* wanted = nullptr;
};

std::unique_ptr<Collective> start(const Step& step, Comm comm, const Tuning& tuning,
                                  const OpenResult& open) {
  const int rank = comm.rank();
  const int ranks = comm.size();
  const std::size_t pointers =
      static_cast<std::size_t>(step.parts) * static_cast<std::size_t>(rank);
  const void* const* const inputs = step.inputs.data() + pointers;
  void* const* const outputs = step.outputs.data() + pointers;
  switch (static_cast<OpKind>(step.kind)) {
    case OpKind::kAllreduce: {
      collectives::AllreduceArgs args{{}, reduction_of(step), {}};
      for (int i = 0; i < step.parts; ++i) {
        args.parts.push_back({inputs[i], outputs[i],
                              size_from(step.counts[static_cast<std::size_t>(i)], "a count")});
      }
      if (open.data != nullptr) {
        collectives::AllreducePart& part = args.parts.front();
        if (part.input == part.output) {
          std::memcpy(open.data, part.input, open.bytes);
          part.input = open.data;
        }
        part.output = open.data;
      }
      for (int r = 0; in_arena(step) && r < ranks; ++r) {
        args.mapped.push_back(
            static_cast<std::byte*>(step.outputs[static_cast<std::size_t>(step.parts * r)]));
      }
      return make(collectives::kAllreduce, step, std::move(comm), std::move(args), tuning);
    }
    case OpKind::kReducescatter:
      return make<collectives::ReducescatterArgs>(
          collectives::kReducescatter, step, std::move(comm),
          {*inputs, *outputs, sizes_from(step, ranks, 0, 1), reduction_of(step)}, tuning);
    case OpKind::kAllgather:
      return make<collectives::AllgathervArgs>(collectives::kAllgatherv, step, std::move(comm),
                                               {*inputs, *outputs, sizes_from(step, ranks, 0, 1)},
                                               tuning);
    case OpKind::kBroadcast: {
      const std::size_t bytes = size_from(step.counts[0], "a count");
      if (rank == step.root && *inputs != nullptr && *inputs != *outputs && bytes > 0) {
        std::copy_n(static_cast<const std::byte*>(*inputs), bytes,
                    static_cast<std::byte*>(*outputs));
      }
      return make<collectives::BroadcastArgs>(collectives::kBroadcast, step, std::move(comm),
                                              {*outputs, bytes, step.root}, tuning);
    }
    case OpKind::kAlltoall: {
      const auto mine = static_cast<std::size_t>(rank);
      const auto size = static_cast<std::size_t>(ranks);
      return make<collectives::AlltoallvArgs>(
          collectives::kAlltoallv, step, std::move(comm),
          {*inputs, *outputs, sizes_from(step, ranks, mine * size, 1),
           sizes_from(step, ranks, mine, size)},
          tuning);
    }
    case OpKind::kBarrier:
      return make<collectives::Barrier>(collectives::kBarrier, step, std::move(comm), {}, tuning);
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
    case OpKind::kSend:
    case OpKind::kRecv:
      break;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "operation kind " + std::to_string(step.kind) + " has no algorithm to simulate");
}

class Scheduler {
 public:
  explicit Scheduler(const Simulation& run)
      : run_(run),
        draw_(run.seed),
        entered_(run.steps.size(), 0),
        members_(std::make_shared<std::vector<int>>(static_cast<std::size_t>(run.ranks))),
        fabric_(transport::make_fabric(
            {run.ranks, run.hosts, size_from(run.tile_bytes, "tile_bytes"), 0})) {
    std::iota(members_->begin(), members_->end(), 0);
    for (int number = 0; number < run.ranks; ++number) {
      Rank& rank = ranks_.emplace_back();
      rank.endpoint = std::make_unique<transport::FickleTransport>(
          connect(fabric_, number), draw_, fickle_, [this] { interrupt(); });
      for (int region = 0; region < 2; ++region) {
        rank.channels[static_cast<std::size_t>(region)] = make_channel(*rank.endpoint, region);
      }
      rank.hosts = make_map(*rank.endpoint);
      unfinished_.push_back(number);
    }
  }

  ~Scheduler() {
    for (Rank& rank : ranks_) {
      rank.channels = {};  // they touch the endpoint's window once more
      // Before the machines: it withdraws what points into them.
      rank.endpoint.reset();
    }
  }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void run() {
    while (!unfinished_.empty()) {
      const std::uint64_t before = transport::activity(*fabric_);
      const std::size_t moved = step_some();
      if (moved > 0 || transport::activity(*fabric_) != before) continue;
      step_all_or_give_up();
    }
  }

 private:
  struct Machine {
    std::size_t step;
    bool entered;
    OpenResult open;
    std::unique_ptr<Collective> collective;
  };
  struct Rank {
    std::array<std::unique_ptr<collectives::SharedChannel>, 2> channels;
    std::unique_ptr<collectives::HostMap> hosts;
    std::deque<Machine> running;
    std::unique_ptr<transport::FickleTransport> endpoint;
    std::size_t started = 0;  // steps
    bool in_step = false;
  };
  static constexpr std::size_t kMaxRunning = 4;

  static std::unique_ptr<collectives::HostMap> make_map(const transport::Transport& endpoint) {
    std::vector<int> host_of;
    host_of.reserve(static_cast<std::size_t>(endpoint.size()));
    for (int peer = 0; peer < endpoint.size(); ++peer) host_of.push_back(endpoint.host_of(peer));
    return std::make_unique<collectives::HostMap>(host_of, endpoint.rank());
  }

  // What the ranks of an endpoint's host share in a region of their window.
  static std::unique_ptr<collectives::SharedChannel> make_channel(transport::Transport& endpoint,
                                                                  int region) {
    std::vector<int> members, local_ranks;
    for (int peer = 0; peer < endpoint.size(); ++peer) {
      if (endpoint.host_of(peer) != endpoint.host_of(endpoint.rank())) continue;
      members.push_back(peer);
      local_ranks.push_back(endpoint.local_rank_of(peer));
    }
    return std::make_unique<collectives::SharedChannel>(*endpoint.window(), region,
                                                        std::move(members), std::move(local_ranks),
                                                        endpoint.local_rank_of(endpoint.rank()));
  }

  // As many steps as ranks, of ranks drawn by chance: some several times, some not at all. Returns
  // how many of them started or finished something.
  std::size_t step_some() {
    std::size_t moved = 0;
    for (std::size_t steps = unfinished_.size(); steps > 0 && !unfinished_.empty(); --steps) {
      moved += step(draw_unfinished(), /*eager=*/false);
    }
    return moved;
  }

  int draw_unfinished() { return unfinished_[draw_() % unfinished_.size()]; }

  // A rank is preempted in the middle of its step; one at a time, or the steps would be without number.
  void interrupt() {
    if (!fickle_ || interrupted_ || draw_() % 8 != 0) return;
    interrupted_ = true;
    for (std::size_t steps = draw_() % (4 * ranks_.size()); steps > 0; --steps) {
      const int number = draw_unfinished();
      if (!ranks_[static_cast<std::size_t>(number)].in_step) step(number, /*eager=*/false);
    }
    interrupted_ = false;
  }

  void step_all_or_give_up() {
    fickle_ = false;
    const std::uint64_t before = transport::activity(*fabric_);
    std::size_t moved = 0;
    for (const int number : std::vector<int>(unfinished_)) moved += step(number, /*eager=*/true);
    if (moved == 0 && transport::activity(*fabric_) == before) give_up();
    fickle_ = true;
  }

  // Starts the next collective or advances those in flight; eager: both.
  std::size_t step(int number, bool eager) {
    Rank& rank = ranks_[static_cast<std::size_t>(number)];
    rank.in_step = true;
    const std::size_t moved = advance_some(rank, number, eager);
    rank.in_step = false;
    if (rank.running.empty()) {
      HVD_CHECK(rank.endpoint->under_way() == 0);  // the caller may free its buffers now
      for (const auto& channel : rank.channels) HVD_CHECK(channel->all_turns_ended());
      if (rank.started == run_.steps.size()) std::erase(unfinished_, number);
    }
    return moved;
  }

  std::size_t advance_some(Rank& rank, int number, bool eager) {
    std::size_t moved = 0;
    const bool may_start = rank.started < run_.steps.size() && rank.running.size() < kMaxRunning;
    if (may_start && (eager || rank.running.empty() || draw_() % 2 == 0)) {
      start_next(rank, number);
      moved = 1;
      if (!eager && draw_() % 2 == 0) return moved;
    }
    for (auto machine = rank.running.begin(); machine != rank.running.end();) {
      if (!advance(*machine)) {
        ++machine;
        continue;
      }
      close_result(rank, machine->open);
      ++moved;
      machine = rank.running.erase(machine);
    }
    return moved;
  }

  void start_next(Rank& rank, int number) {
    const auto tag = static_cast<std::uint32_t>(5 + rank.started) << collectives::kChannelBits;
    Comm comm(*rank.endpoint, members_, number, tag, {},
              {rank.channels[0].get(), rank.channels[1].get(), rank.hosts.get()});
    const Step& step = run_.steps[rank.started];
    const OpenResult open = open_result(rank, number, step);
    rank.running.push_back({rank.started, /*entered=*/false, open,
                            start(step, std::move(comm), tuning_of(run_, number), open)});
    ++rank.started;
  }

  // On all ranks, or on some: in memory that the others map.
  OpenResult open_result(Rank& rank, int number, const Step& step) const {
    OpenResult open;
    const auto& memory = rank.endpoint->window()->results();
    const bool suits =
        static_cast<OpKind>(step.kind) == OpKind::kAllreduce && step.parts == 1 && !in_arena(step);
    const bool wants =
        run_.seed % 2 == 1 || (run_.seed / 2 + static_cast<std::uint64_t>(number)) % 3 != 0;
    if (!suits || !wants || !memory || step.outputs[static_cast<std::size_t>(number)] == nullptr)
      return open;
    open.bytes =
        size_from(step.counts[0], "a count") * base::size_of(static_cast<base::DType>(step.dtype));
    open.data = static_cast<std::byte*>(memory->get(open.bytes));
    open.wanted = step.outputs[static_cast<std::size_t>(number)];
    return open;
  }

  static void close_result(Rank& rank, const OpenResult& open) {
    if (open.data == nullptr) return;
    std::memcpy(open.wanted, open.data, open.bytes);
    rank.endpoint->window()->results()->give_back(open.data);
  }

  bool advance(Machine& machine) {
    std::size_t& entered = entered_[machine.step];
    if (!std::exchange(machine.entered, true)) ++entered;
    if (!machine.collective->advance()) return false;
    // Finished is for ever; but the engine does not call it again.
    HVD_CHECK(draw_() % 2 == 0 || machine.collective->advance());
    HVD_CHECK(static_cast<OpKind>(run_.steps[machine.step].kind) != OpKind::kBarrier ||
              entered == ranks_.size());
    return true;
  }

  [[noreturn]] void give_up() {
    std::sort(unfinished_.begin(), unfinished_.end());
    std::string ranks;
    for (const int rank : unfinished_) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    throw Error(ErrorCode::kInternal,
                "stuck: nothing moves any more, and these ranks have not finished: " + ranks);
  }

  const Simulation& run_;
  std::mt19937_64 draw_;
  std::vector<std::size_t> entered_;  // by step: ranks that have advanced it at least once
  bool fickle_ = true;
  bool interrupted_ = false;
  std::shared_ptr<std::vector<int>> members_;
  std::shared_ptr<transport::Fabric> fabric_;
  std::deque<Rank> ranks_;
  std::vector<int> unfinished_;
};

void check(const Simulation& run) {
  require(run.ranks >= 1, "ranks must be at least 1, but is " + std::to_string(run.ranks));
  require(run.hosts.empty() || run.hosts.size() == static_cast<std::size_t>(run.ranks),
          "simulate needs the number of a host for each rank, or none");
  require(run.isa <= static_cast<int>(kernels::Isa::kAvx512),
          "isa " + std::to_string(run.isa) + " is not one of 0 scalar, 1 avx2, 2 avx512");
  for (const Step& step : run.steps) {
    require(step.kind >= 0 && step.kind < base::kNumOpKinds && step.dtype >= 0 &&
                step.dtype < base::kNumDTypes && step.op >= 0 &&
                step.op <= static_cast<int>(base::ReduceOp::kProduct),
            "unknown kind " + std::to_string(step.kind) + ", dtype " + std::to_string(step.dtype) +
                " or op " + std::to_string(step.op));
    require(step.parts >= 1, "parts must be at least 1, but is " + std::to_string(step.parts));
    const auto expected =
        static_cast<std::size_t>(run.ranks) * static_cast<std::size_t>(step.parts);
    require(step.inputs.size() == expected && step.outputs.size() == expected,
            "simulate needs one input and one output address for each part of each rank");
    require(static_cast<OpKind>(step.kind) == OpKind::kBarrier || !step.counts.empty(),
            "no counts are given");
    require(step.root >= 0 && step.root < run.ranks, "root " + std::to_string(step.root) +
                                                         " is not one of the ranks 0-" +
                                                         std::to_string(run.ranks - 1));
  }
}

template <typename Args>
std::vector<std::string> names_of(const collectives::AlgorithmList<Args>& list) {
  std::vector<std::string> names;
  for (const auto& algorithm : list.algorithms) {
    if (algorithm.can_be_forced()) names.emplace_back(algorithm.name);
  }
  return names;
}

}  // namespace

void simulate(const Simulation& run) {
  check(run);
  Scheduler(run).run();
}

std::vector<std::string> algorithms(int kind) {
  switch (static_cast<OpKind>(kind)) {
    case OpKind::kAllreduce:
      return names_of(collectives::kAllreduce);
    case OpKind::kAllgather:
      return names_of(collectives::kAllgatherv);
    case OpKind::kBroadcast:
      return names_of(collectives::kBroadcast);
    case OpKind::kAlltoall:
      return names_of(collectives::kAlltoallv);
    case OpKind::kReducescatter:
      return names_of(collectives::kReducescatter);
    case OpKind::kBarrier:
      return names_of(collectives::kBarrier);
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
    case OpKind::kSend:
    case OpKind::kRecv:
      break;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "no operation that moves data has the number " + std::to_string(kind));
}

}  // namespace hvdlite::testing
