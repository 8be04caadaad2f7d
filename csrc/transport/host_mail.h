// Control messages between the ranks of one host, through the host's window. Each ordered pair of ranks has a ring. A message
// that finds no room waits in the sender's memory. Messages from one rank to another keep their order.
// Thread: the holder of the progress token. Owns: unsent messages, and the received pieces of incomplete messages. Blocks: no.
// Throws: Error(Internal) if a ring holds values that no correct rank stores.
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
  // Moves the next whole message of any rank into *message. Returns false if there is none.
  bool receive(int* from, std::vector<std::byte>* message);
  // Has this rank stored all its messages in the rings, each as a whole? Messages to ranks that have stopped reading are
  // dropped and do not count.
  bool flushed();
  // The number of pieces that this rank has taken from the other rank's ring.
  std::uint64_t received_from(int local_rank) const {
    return boxes_[index_of(local_rank)].received;
  }
  // This rank stops reading. From then on other ranks do not keep messages for it, and do not wait until it has read them.
  void close();

 private:
  struct Box {
    MailRingWriter out;
    MailRingReader in;
    std::deque<std::vector<std::byte>> unsent{};
    std::size_t done = 0;  // bytes of the first unsent message that are in the ring
    std::vector<std::byte> begun{};
    std::uint64_t received = 0;
  };
  static std::size_t index_of(int local_rank) { return static_cast<std::size_t>(local_rank); }
  void push_unsent();
  void push_unsent(Box& box, int to);
  bool take(Box& box, int from, std::vector<std::byte>* message);

  const int local_rank_;
  const std::function<void(int)> ring_;
  std::vector<Box> boxes_;  // by local rank; this rank's own box is unused
  std::size_t unsent_ = 0;  // messages in all boxes
  // The box where the last search ended. The next search begins after it, so that each rank gets its turn.
  std::size_t looked_last_ = 0;
};

}  // namespace hvdlite::transport
