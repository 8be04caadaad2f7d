// A switch in user space: one Ethernet port a host, each with a rate, a delay, a jitter and a loss of its own traffic, for
// kernels without a network emulator.
//
// A port is a TAP device in the network namespace of its host; the switch reads every frame, works out when its last byte
// would leave the sender's link, cross the wire and leave the receiver's link, and writes it then:
//
//   read ──> sender's link (rate) ──> wire (delay + jitter, loss) ──> receiver's link (rate) ──> written
//
// A link that is busy for longer than kQueue drops the frame, as a switch with a full queue does. Frames of one pair of
// hosts never overtake each other.
// Thread: one. Owns: the TAP devices. Blocks: wait() only. Throws: std::system_error.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <queue>
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
    Clock::time_point receives_until{};
    std::vector<Clock::time_point> latest;  // arrival of the last frame from each port
  };
  struct Frame {
    Clock::time_point due;
    std::uint64_t number = 0;  // keeps frames that are due together in order
    std::size_t port = 0;
    std::vector<std::byte> bytes;
    bool operator<(const Frame& other) const {
      return due != other.due ? due > other.due : number > other.number;
    }
  };

  void add_device(int device);
  bool take(std::size_t from);
  void send(std::size_t from, std::size_t to, Clock::time_point sent, Clock::duration link_time,
            std::size_t bytes);
  void deliver_due();

  Shape shape_;
  std::vector<Port> ports_;
  std::priority_queue<Frame> under_way_;
  std::uint64_t frames_ = 0;
  std::mt19937_64 draw_{1};
  std::vector<std::byte> buffer_;
};

}  // namespace hosts
