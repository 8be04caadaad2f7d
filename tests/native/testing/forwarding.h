// A transport that hands everything on to the one it wraps, except how ranks end: what stands between for tests overrides what
// it changes.
// Thread: as the wrapped one. Owns: the wrapped one. Blocks: as it does. Throws: what it throws.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace hvdlite::transport {

class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> below) : below_(std::move(below)) {}
  ~ForwardingTransport() override { below_->announce_leaving(); }

  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  int tag_bits() const override { return below_->tag_bits(); }

  Ticket post_send(int peer, std::uint32_t tag, const void* data, std::size_t bytes) override {
    return below_->post_send(peer, tag, data, bytes);
  }
  Ticket post_recv(int peer, std::uint32_t tag, void* data, std::size_t bytes) override {
    return below_->post_recv(peer, tag, data, bytes);
  }
  bool test(Ticket& ticket) override { return below_->test(ticket); }

  void send_message(int peer, std::vector<std::byte> message) override {
    below_->send_message(peer, std::move(message));
  }
  bool receive_message(int* source, std::vector<std::byte>* message, bool host_only) override {
    return below_->receive_message(source, message, host_only);
  }
  bool messages_flushed() override { return below_->messages_flushed(); }

  std::uint32_t listen() override { return below_->listen(); }
  void unlisten() override { below_->unlisten(); }
  void wait(std::uint32_t seen, std::chrono::microseconds limit) override {
    below_->wait(seen, limit);
  }
  void ring(int peer) override { below_->ring(peer); }
  bool reaches_by_bell(int peer) const override { return below_->reaches_by_bell(peer); }

  int host_of(int peer) const override { return below_->host_of(peer); }
  int local_rank_of(int peer) const override { return below_->local_rank_of(peer); }
  HostWindow* window() override { return below_->window(); }
  bool windows_everywhere() override { return below_->windows_everywhere(); }
  void note_progress() override { below_->note_progress(); }
  void announce_failure(const std::string& /*cause*/) override {}
  void announce_leaving() override {}
  bool find_lost_peer(int* /*rank*/, std::string* /*how*/) override { return false; }
  std::uint64_t received_from(int peer) const override { return below_->received_from(peer); }
  std::string describe_peer(int peer) const override { return below_->describe_peer(peer); }
  int process_of(int peer) const override { return below_->process_of(peer); }
  bool close() override { return below_->close(); }

 private:
  std::unique_ptr<Transport> below_;
};

}  // namespace hvdlite::transport
