// A transport for tests that wraps another one: it reports some completions late, so that channels
// and windows run out of step, lets other ranks go on in the middle of what this one does, and checks
// what a real network cannot forgive: that buffers under way do not overlap, and that no messages of
// zero bytes are posted.
// Thread: as the wrapped one. Owns: the wrapped one. Blocks: as it does.
// Throws: Error(Internal) for a broken rule, and what the wrapped one and the others' steps throw.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "testing/forwarding.h"

namespace hvdlite::transport {

class FickleTransport final : public ForwardingTransport {
 public:
  // While `fickle` is set one test in four says "not yet", as drawn from `draw`; both outlive this.
  // At each call that one rank may make while others make theirs, the others may go on first.
  FickleTransport(std::unique_ptr<Transport> below, std::mt19937_64& draw, const bool& fickle,
                  std::function<void()> others_go_on)
      : ForwardingTransport(std::move(below)),
        draw_(draw),
        fickle_(fickle),
        others_go_on_(std::move(others_go_on)) {}

  Ticket post_send(int peer, std::uint32_t tag, const void* data, std::size_t bytes) override {
    others_go_on_();
    const Buffer buffer = {static_cast<const std::byte*>(data), bytes, /*receives=*/false};
    check(buffer);
    return remember(ForwardingTransport::post_send(peer, tag, data, bytes), buffer);
  }

  Ticket post_recv(int peer, std::uint32_t tag, void* data, std::size_t bytes) override {
    others_go_on_();
    const Buffer buffer = {static_cast<const std::byte*>(data), bytes, /*receives=*/true};
    check(buffer);
    return remember(ForwardingTransport::post_recv(peer, tag, data, bytes), buffer);
  }

  bool test(Ticket& ticket) override {
    if (!ticket) return true;
    others_go_on_();
    if (fickle_ && draw_() % 4 == 0) return false;
    const std::uint64_t id = ticket.id;
    if (!ForwardingTransport::test(ticket)) return false;
    under_way_.erase(id);
    return true;
  }

  void ring(int peer) override {
    others_go_on_();
    ForwardingTransport::ring(peer);
  }

  void note_progress() override {
    ForwardingTransport::note_progress();
    others_go_on_();
  }

  // Posted and not yet seen to be complete.
  std::size_t under_way() const { return under_way_.size(); }

 private:
  struct Buffer {
    const std::byte* data;
    std::size_t bytes;
    bool receives;
  };

  // What is being sent may be sent twice; what is being received may not be touched.
  void check(const Buffer& buffer) const {
    HVD_CHECK(buffer.bytes > 0);  // both sides know that there is nothing to say
    for (const auto& [id, other] : under_way_) {
      const bool apart =
          buffer.data + buffer.bytes <= other.data || other.data + other.bytes <= buffer.data;
      HVD_CHECK(apart || (!buffer.receives && !other.receives));
    }
  }

  Ticket remember(Ticket ticket, const Buffer& buffer) {
    if (ticket) under_way_.emplace(ticket.id, buffer);
    return ticket;
  }

  std::mt19937_64& draw_;
  const bool& fickle_;
  std::function<void()> others_go_on_;
  std::unordered_map<std::uint64_t, Buffer> under_way_;
};

}  // namespace hvdlite::transport
