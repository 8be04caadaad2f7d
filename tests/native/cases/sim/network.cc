#include "sim/network.h"

#include "base/error.h"

namespace hvdlite::sim {

using base::Error;
using base::ErrorCode;
using transport::Ticket;

void Network::die(int rank, const std::string& how) {
  Node& dead = node(rank);
  dead.dead = true;
  if (dead.loss.empty() && !dead.left) dead.loss = how;
  dead.endpoint->close();  // nobody finds its buffers any more
}

Endpoint::Endpoint(std::unique_ptr<Transport> below, Network& network)
    : ForwardingTransport(std::move(below)),
      network_(network),
      received_(static_cast<std::size_t>(size())),
      told_(static_cast<std::size_t>(size())) {
  network_.node(rank()).endpoint = this;
}

void Endpoint::require_alive(int peer) const {
  if (!network_.mpi_tells || !network_.node(peer).dead) return;
  throw Error(ErrorCode::kPeerLost, "MPI says that a process has failed");
}

Ticket Endpoint::keep(Posted posted) {
  posted_[++next_] = posted;
  return {next_};
}

Ticket Endpoint::post_send(int peer, std::uint32_t tag, const void* data, std::size_t bytes) {
  require_alive(peer);
  bytes_sent_ += bytes;
  Posted posted{peer, false, {}};
  if (network_.connected(rank(), peer) && !network_.node(peer).dead) {
    posted.below = ForwardingTransport::post_send(peer, tag, data, bytes);
    ring(peer);
  }
  return keep(posted);
}

Ticket Endpoint::post_recv(int peer, std::uint32_t tag, void* data, std::size_t bytes) {
  require_alive(peer);
  Posted posted{peer, true, {}};
  if (network_.connected(rank(), peer)) {
    posted.below = ForwardingTransport::post_recv(peer, tag, data, bytes);
    ring(peer);
  }
  return keep(posted);
}

bool Endpoint::test(Ticket& ticket) {
  if (!ticket) return true;
  const auto found = posted_.find(ticket.id);
  HVD_CHECK(found != posted_.end());
  Posted& posted = found->second;
  if (!posted.below || !ForwardingTransport::test(posted.below)) {
    require_alive(posted.peer);
    return false;
  }
  if (posted.receives) ++received_[static_cast<std::size_t>(posted.peer)];
  posted_.erase(found);
  ticket = {};
  ++activity_;
  return true;
}

void Endpoint::send_message(int peer, std::vector<std::byte> message) {
  const Node& own = network_.node(rank());
  if (own.refused || own.refused_to == peer) throw Error(ErrorCode::kSystem, "refused");
  if (!network_.connected(rank(), peer) || network_.node(peer).dead) return;
  ForwardingTransport::send_message(peer, std::move(message));
  ring(peer);
}

bool Endpoint::receive_message(int* source, std::vector<std::byte>* message, bool host_only) {
  if (!ForwardingTransport::receive_message(source, message, host_only)) return false;
  ++received_[static_cast<std::size_t>(*source)];
  return true;
}

void Endpoint::ring(int peer) {
  if (reaches_by_bell(peer)) network_.node(peer).rung = true;
}

bool Endpoint::reaches_by_bell(int peer) const { return network_.share_host(rank(), peer); }

void Endpoint::announce_failure(const std::string& cause) {
  Node& own = network_.node(rank());
  if (own.loss.empty() && !own.left) own.loss = cause;
}

void Endpoint::announce_leaving() { network_.node(rank()).left = true; }

bool Endpoint::find_lost_peer(int* lost, std::string* how) {
  for (int peer = 0; peer < size(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    const Node& node = network_.node(peer);
    if (peer == rank() || told_[index] || node.left) continue;
    const bool seen = reaches_by_bell(peer) && !node.loss.empty();
    if (!seen && !(network_.mpi_tells && node.dead)) continue;
    told_[index] = true;
    *lost = peer;
    *how =
        seen ? node.loss : "ended without telling the other ranks, as MPI reports: it was killed";
    return true;
  }
  return false;
}

std::string Endpoint::describe_peer(int peer) const {
  return "rank " + std::to_string(peer) + " (host h" + std::to_string(network_.node(peer).host) +
         ")";
}

}  // namespace hvdlite::sim
