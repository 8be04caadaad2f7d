// Most values come from the knobs and the transport. Two depend on this rank's processor: the instruction set, and the number
// of polls that fit into kInnerSpin. Ranks may differ in these two and in the knob tile_stores, because results do not
// depend on them (Tuning in collectives/collective.h).
#include "engine/set_up.h"

#include <vector>

#include "kernels/kernels.h"
#include "transport/host_window.h"

namespace hvdlite::engine {

namespace {

// If callers may spin, an algorithm in shared memory polls for a flag for about this long before its advance() returns without
// the flag (SharedCollective::advance). This time is much longer than the transfer of a cache line between processors. Inside
// allreduce_hierarchical such an algorithm polls only once.
constexpr base::microseconds kInnerSpin{3};

// The knob tile_stores has three values (hvdlite/knobs.py). With the third, auto, ranks measure which stores are faster.
collectives::TileStores stores_of(const std::string& knob) {
  using collectives::TileStores;
  if (knob == "ordinary") return TileStores::kOrdinary;
  return knob == "streaming" ? TileStores::kStreaming : TileStores::kAuto;
}

}  // namespace

// Takes the best instruction set of this processor unless the knob kernel_isa names another one. An instruction set that the
// processor lacks is refused here, when the engine is made, because with it the first reduction would fail
// (kernels::reduce_kernels).
collectives::Selection selection_of(const base::Config& config, const base::WaitPolicy& waiting) {
  collectives::Selection selection;
  selection.allreduce = config.allreduce_algorithm;
  selection.reducescatter = config.reducescatter_algorithm;
  selection.allgatherv = config.allgatherv_algorithm;
  selection.broadcast = config.broadcast_algorithm;
  selection.alltoallv = config.alltoallv_algorithm;
  selection.barrier = config.barrier_algorithm;
  selection.deterministic = config.deterministic;
  selection.tuning.deterministic = config.deterministic;
  selection.recursive_doubling_max_bytes = config.recursive_doubling_max_bytes;
  selection.tuning.segment_bytes = config.segment_bytes;
  selection.tuning.streaming_bytes = config.streaming_bytes;
  selection.tuning.tile_stores = stores_of(config.tile_stores);
  if (waiting.spin.count() > 0) selection.tuning.spin = base::spin_pauses_in(kInnerSpin);
  selection.tuning.isa = kernels::best_isa();
  if (config.kernel_isa != "auto") {
    bool known = false;
    for (const kernels::Isa isa :
         {kernels::Isa::kScalar, kernels::Isa::kAvx2, kernels::Isa::kAvx512}) {
      if (config.kernel_isa != kernels::name_of(isa)) continue;
      known = true;
      selection.tuning.isa = isa;
    }
    if (!known || !kernels::isa_supported(selection.tuning.isa)) {
      throw base::Error(base::ErrorCode::kInvalidArgument,
                        "HVDLITE_KERNEL_ISA=" + config.kernel_isa +
                            " is not available on this processor; use auto, or at most " +
                            kernels::name_of(kernels::best_isa()));
    }
  }
  collectives::check_selection(selection);
  return selection;
}

// Results of more than `largest` bytes lie in private memory: each rank writes its own result of such a size
// (ResultMemory::largest), so other ranks need not map the result.
std::shared_ptr<OutputCache> make_output_cache(transport::Transport& transport,
                                               const base::Config& config) {
  const transport::HostWindow* const window = transport.window();
  if (window == nullptr || !config.shared_outputs || config.output_cache_bytes == 0) {
    return std::make_shared<OutputCache>(config.output_cache_bytes);
  }
  const std::size_t largest =
      transport::ResultMemory::largest(config.streaming_bytes, window->ranks());
  return std::make_shared<OutputCache>(config.output_cache_bytes, window->results(), largest);
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

// All ranks of a host begin with equal tables of regions, because they see the same number of regions, and for each rank the
// same host.
Regions regions_of(transport::Transport& transport) {
  std::vector<int> host_of;
  for (int rank = 0; rank < transport.size(); ++rank) host_of.push_back(transport.host_of(rank));
  const transport::HostWindow* window = transport.window();
  return {window != nullptr ? window->regions() : 0, std::move(host_of), transport.rank(),
          transport.windows_everywhere()};
}

// agreement_is_barrier: if the user forces an algorithm for barriers, this algorithm runs. Otherwise no algorithm runs for a
// barrier on which the members have agreed at the port (negotiation/agreement.h), because this agreement already is a barrier.
Negotiation::Settings settings_of(const transport::Transport& transport,
                                  const base::Config& config) {
  return {.rank = transport.rank(),
          .fusion_threshold = config.fusion_threshold,
          .cache_capacity = config.cache_capacity,
          .join_refuses_others = config.horovod_rules,
          .agreement_is_barrier = config.barrier_algorithm == "auto",
          .ledger_copies = config.ledger_copies};
}

}  // namespace hvdlite::engine
