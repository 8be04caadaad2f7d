// What lies between simulated ranks: hosts with shared memory and doorbells, links that can be cut, and who is dead.
// Thread: one. Owns: each rank's endpoint of the in-process fabric. Blocks: no. Throws: what Transport says.
//
// It is as forgetful as the real thing where that matters for failures: a death rings no bell, only the ranks of its host see it
// (or all, where MPI tells), what is sent to the dead or over a cut link vanishes, and nobody is told so.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "testing/forwarding.h"
#include "transport/inproc.h"

namespace hvdlite::sim {

struct Node {
  int host = 0;
  bool dead = false;
  bool left = false;
  bool rung = false;
  bool refused = false;  // MPI refuses its sends
  int refused_to = -1;   // MPI refuses its sends to this rank
  std::string loss;      // what the ranks of its host can see of its end
  transport::Transport* endpoint = nullptr;
};

struct Network {
  std::vector<Node> nodes;
  std::vector<bool> cut;  // by host
  bool mpi_tells =
      false;  // as with fault tolerance: all learn of a death, and calls that need the dead fail

  Node& node(int rank) { return nodes[static_cast<std::size_t>(rank)]; }
  bool share_host(int a, int b) { return node(a).host == node(b).host; }
  bool connected(int a, int b) {
    return share_host(a, b) || (!cut[static_cast<std::size_t>(node(a).host)] &&
                                !cut[static_cast<std::size_t>(node(b).host)]);
  }
  void die(int rank, const std::string& how);
};

class Endpoint final : public transport::ForwardingTransport {
 public:
  Endpoint(std::unique_ptr<Transport> below, Network& network);

  transport::Ticket post_send(int peer, std::uint32_t tag, const void* data,
                              std::size_t bytes) override;
  transport::Ticket post_recv(int peer, std::uint32_t tag, void* data, std::size_t bytes) override;
  bool test(transport::Ticket& ticket) override;
  void send_message(int peer, std::vector<std::byte> message) override;
  bool receive_message(int* source, std::vector<std::byte>* message, bool host_only) override;

  void ring(int peer) override;
  bool reaches_by_bell(int peer) const override;

  void note_progress() override { ++activity_; }
  void announce_failure(const std::string& cause) override;
  void announce_leaving() override;
  bool find_lost_peer(int* rank, std::string* how) override;
  std::uint64_t received_from(int peer) const override {
    return received_[static_cast<std::size_t>(peer)];
  }
  std::string describe_peer(int peer) const override;

 private:
  struct Posted {
    int peer = 0;
    bool receives = false;
    transport::Ticket below;  // none: it went nowhere
  };
  transport::Ticket keep(Posted posted);
  void require_alive(int peer) const;

  Network& network_;
  std::map<std::uint64_t, Posted> posted_;
  std::uint64_t next_ = 0;
  std::vector<std::uint64_t> received_;
  std::vector<bool> told_;
};

}  // namespace hvdlite::sim
