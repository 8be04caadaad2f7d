// Control messages between the ranks of one host, through their window: each ordered pair has a ring. What finds no room waits
// in the sender's memory, in its order.
// Thread: the holder of the progress token. Owns: what has not left, and what has not come whole. Blocks: no.
// Throws: Error(Internal) on what no correct rank sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "transport/host_window.h"

namespace hvdlite::transport {

class HostMail {
 public:
  // ring(local_rank) wakes that rank if it sleeps.
  HostMail(const HostWindow& window, std::function<void(int)> ring);

  void send(int to, std::vector<std::byte> message);
  // The next whole message, from whichever rank; into the vector's memory.
  bool receive(int* from, std::vector<std::byte>* message);
  // Has all left that somebody will read?
  bool flushed();
  // Pieces taken from that rank.
  std::uint64_t received_from(int local_rank) const {
    return boxes_[index_of(local_rank)].received;
  }
  // Nothing is read any more, and nobody needs to wait for that.
  void close();

 private:
  struct Box {
    MailRingWriter out;
    MailRingReader in;
    std::deque<std::vector<std::byte>> unsent{};
    std::size_t done = 0;  // of the first of them
    std::vector<std::byte> begun{};
    std::uint64_t received = 0;
  };
  static std::size_t index_of(int local_rank) { return static_cast<std::size_t>(local_rank); }
  void push_unsent();
  void push_unsent(Box& box, int to);
  bool take(Box& box, int from, std::vector<std::byte>* message);

  const int local_rank_;
  const std::function<void(int)> ring_;
  std::vector<Box> boxes_;       // by local rank; nobody uses the own one
  std::size_t unsent_ = 0;       // messages
  std::size_t looked_last_ = 0;  // so that no rank keeps the others' messages waiting
};

}  // namespace hvdlite::transport
