#include "engine/set_up.h"

#include <vector>

#include "transport/host_window.h"

namespace hvdlite::engine {

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

Regions regions_of(transport::Transport& transport) {
  std::vector<int> host_of;
  for (int rank = 0; rank < transport.size(); ++rank) host_of.push_back(transport.host_of(rank));
  const transport::HostWindow* window = transport.window();
  return {window != nullptr ? window->regions() : 0, std::move(host_of), transport.rank(),
          transport.windows_everywhere()};
}

Negotiation::Settings settings_of(const transport::Transport& transport, const base::Config& config,
                                  const collectives::Selection& selection) {
  return {.rank = transport.rank(),
          .fusion_threshold = config.fusion_threshold,
          .cache_capacity = config.cache_capacity,
          .join_refuses_others = config.horovod_rules,
          .agreement_is_barrier = selection.barrier == "auto"};
}

}  // namespace hvdlite::engine
