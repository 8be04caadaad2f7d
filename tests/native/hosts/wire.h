// A switch in user space: one Ethernet port a host, each with a rate, a delay, a jitter and a loss of its own traffic, for
// kernels without a network emulator.
//
// A port is a TAP device in the network namespace of its host; the switch reads every frame, works out when its last byte
// would leave the sender's link, cross the wire and leave the receiver's link, and writes it then:
//
//   read ──> sender's link (rate) ──> wire (delay + jitter, loss) ──> receiver's link (rate) ──> written
//
// Frames of several senders reach a receiver's link together. They share it byte by byte, because the kernel passes on frames
// of up to 64 KiB where a real link carries short ones in turn: a short frame does not wait for a long one that began before it.
// So the link of a receiver has a backlog, which grows while two or more senders' frames arrive. A frame leaves when all bytes
// that arrived before its last byte have left.
// A link that is busy for longer than kQueue drops the frame, as a switch with a full queue does. Frames of one pair of
// hosts never overtake each other.
// Thread: one. Owns: the TAP devices. Blocks: wait() only. Throws: std::system_error.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace hosts {

#ifdef HOSTS_CLOCK
using Clock = HOSTS_CLOCK;
#else
using Clock = std::chrono::steady_clock;
#endif

struct Shape {
  double rate_mbit = 0;  // of each host's link, both ways; 0: unlimited
  double delay_us = 0;   // from one host to another, one way
  double jitter_us = 0;  // at most so much more
  double loss = 0;  // the chance of a frame to be lost; 1: the hosts are cut off from each other
};

class Wire {
 public:
  // The address of a port: 10.77.0.(port + 1), for tools and for the table of names.
  static constexpr unsigned char kNetwork[3] = {10, 77, 0};

  // Makes an interface eth0 with the next port's address in the network namespace that `namespace_path` names.
  void add_port(const char* namespace_path);
  void set_shape(const Shape& shape) { shape_ = shape; }
  // Carries frames until `other` is readable or the time is over; true if it is readable.
  bool carry(int other, Clock::time_point end);

 private:
  friend class WireTest;  // tests/native/wire_test.cc

  struct Port {
    int device = -1;
    Clock::time_point sends_until{};  // its link is busy until then
    // Of its link as the receiver, in the time that the link needs for it, at `known`.
    Clock::duration backlog{};
    Clock::time_point known{};
    int arriving = 0;  // frames whose first byte has reached it and whose last byte has not
    std::vector<Clock::time_point> latest;  // arrival of the last frame from each port

    void count_backlog(Clock::time_point time);
  };
  struct Frame {
    enum class Stage { kBegins, kArrives, kLeaves };  // what happens next, at its receiver's link
    Stage stage;
    std::size_t port;  // the receiver's
    Clock::duration link_time;
    std::vector<std::byte> bytes;
  };

  void add_device(int device);
  bool take(std::size_t from);
  void send(std::size_t from, std::size_t to, Clock::time_point sent, Clock::duration link_time,
            std::size_t bytes);
  void deliver_due();

  Shape shape_;
  std::vector<Port> ports_;
  std::multimap<Clock::time_point, Frame> under_way_;  // by the time of what happens next
  std::mt19937_64 draw_{1};
  std::vector<std::byte> buffer_;
};

}  // namespace hosts
