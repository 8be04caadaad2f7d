// Step 6 of the cycle, across hosts: signs of life, and what their absence means (the rest of Cycle is cycle.cc).

#include "base/text.h"
#include "engine/cycle.h"

namespace hvdlite::engine {

using base::Clock;

// The leaders watch over each other for all ranks of their hosts.
void Cycle::begin_heartbeat() {
  const base::microseconds timeout = base::from_seconds(shared_.config.peer_timeout);
  if (timeout.count() <= 0 || transport_.host_of(transport_.rank()) != transport_.rank()) return;
  std::vector<int> others;
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer != transport_.rank() && transport_.host_of(peer) == peer) others.push_back(peer);
  }
  if (others.empty()) return;
  received_.resize(static_cast<std::size_t>(transport_.size()));
  heartbeat_ = std::make_unique<Heartbeat>(others, timeout, shared_.time.now());
}

void Cycle::keep_in_touch(Clock::time_point now) {
  if (!heartbeat_ || said_goodbye_) return;
  for (int peer = 0; peer < transport_.size(); ++peer) {
    std::uint64_t& before = received_[static_cast<std::size_t>(peer)];
    const std::uint64_t received = transport_.received_from(peer);
    if (received != before) heartbeat_->heard(transport_.host_of(peer), now);
    before = received;
  }
  const Heartbeat::Actions actions = heartbeat_->tick(now);
  for (const int leader : actions.send) send(leader, Alive{});
  if (!actions.silent.empty()) host_lost(actions.silent.front());
}

void Cycle::host_lost(int host) {
  std::string ranks;
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (transport_.host_of(peer) != host) continue;
    left_.insert(peer);  // not told: it would have to be waited for
    ranks += (ranks.empty() ? "" : ", ") + transport_.describe_peer(peer);
  }
  const std::string cause = "has heard nothing for " + base::to_text(shared_.config.peer_timeout) +
                            " s (HVDLITE_PEER_TIMEOUT) from the host of " + ranks +
                            ": the host is down, its link is cut, or its first rank is stopped";
  broadcast_failure(cause);
  fail_all({base::ErrorCode::kPeerLost,
            transport_.describe_peer(transport_.rank()) + " " + cause + ". " + kShutDown});
}

// What a rank's neighbours see by the memory they share nobody else sees.
void Cycle::tell_other_hosts(int lost, const std::string& how) {
  const int here = transport_.host_of(transport_.rank());
  if (transport_.host_of(lost) != here) return;
  try {
    for (int peer = 0; peer < transport_.size(); ++peer) {
      if (transport_.host_of(peer) == here || left_.contains(peer)) continue;
      send(peer, Failure{"has lost its neighbour: " + transport_.describe_peer(lost) + " " + how});
    }
  } catch (const base::Error& error) {
    shared_.log.write(base::LogLevel::kError, "control",
                      std::string("could not tell the other hosts: ") + error.what());
  }
}

void Cycle::handle(int source, Alive&) {
  if (heartbeat_) heartbeat_->heard(transport_.host_of(source), shared_.time.now());
}

}  // namespace hvdlite::engine
