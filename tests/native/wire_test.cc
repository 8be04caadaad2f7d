// The switch of the emulated hosts in virtual time: when frames arrive, in which order, and which are lost.

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ratio>
#include <string>

struct SteppedClock {
  using rep = std::int64_t;
  using period = std::nano;
  using duration = std::chrono::duration<rep, period>;
  using time_point = std::chrono::time_point<SteppedClock>;
  static constexpr bool is_steady = true;
  static inline time_point time{};
  static time_point now() { return time; }
};

#define HOSTS_CLOCK SteppedClock
#include "hosts/wire.cc"

namespace hosts {

class WireTest {
 public:
  WireTest(std::size_t ports, Shape shape) {
    wire_.set_shape(shape);
    for (std::size_t port = 0; port < ports; ++port) {
      int ends[2];
      check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends), "socketpair");
      wire_.add_device(ends[0]);
      hosts_.push_back(ends[1]);
    }
  }

  // A host sends a frame of so many bytes to a port, or (port 255) to all, with a number in it.
  void send(std::size_t from, unsigned char to, std::size_t bytes, unsigned char number) {
    std::vector<unsigned char> frame(kHeader + bytes);
    frame[kHeader] = to == 255 ? 1 : 2;
    frame[kHeader + 5] = static_cast<unsigned char>(to + 1);
    frame[kHeader + 14] = number;
    check(static_cast<int>(write(hosts_[from], frame.data(), frame.size())), "write");
    if (!wire_.take(from)) throw std::runtime_error("the switch has not seen a frame");
  }

  // The numbers of the frames that have arrived at a host by this time, in microseconds from the beginning.
  std::vector<int> arrived(std::size_t at, double microseconds) {
    SteppedClock::time = {};
    SteppedClock::time += seconds(microseconds * 1e-6);
    wire_.deliver_due();
    std::vector<int> numbers;
    std::vector<unsigned char> frame(kLargestFrame);
    while (read(hosts_[at], frame.data(), frame.size()) > 0) numbers.push_back(frame[kHeader + 14]);
    return numbers;
  }

 private:
  Wire wire_;
  std::vector<int> hosts_;
};

namespace {

using Numbers = std::vector<int>;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

void an_unlimited_wire_takes_no_time() {
  WireTest wire(2, {});
  wire.send(0, 1, 1514, 7);
  expect(wire.arrived(1, 0) == Numbers{7}, "a frame is there at once");
}

// 100 bytes with preamble, checksum and gap are 124, which at 1 Gbit/s take 0.992 us.
void a_frame_takes_the_delay_and_its_time_on_the_link() {
  WireTest wire(2, {.rate_mbit = 1000, .delay_us = 1000});
  wire.send(0, 1, 100, 7);
  expect(wire.arrived(1, 1000.9).empty(), "not before the delay and its time on the link");
  expect(wire.arrived(1, 1001.0) == Numbers{7}, "then");
}

// 1538 bytes on the wire each: 12.304 us at 1 Gbit/s, 123.04 at 100 Mbit/s.
void frames_share_the_rate_of_the_link() {
  for (const double rate : {1000.0, 100.0}) {
    SteppedClock::time = {};
    WireTest wire(2, {.rate_mbit = rate, .delay_us = 100});
    const double each = 12'304 / rate;
    for (unsigned char number = 0; number < 20; ++number) wire.send(0, 1, 1514, number);
    expect(wire.arrived(1, 100 + 10 * each - 0.1).size() == 9, "the tenth is not there yet");
    expect(wire.arrived(1, 100 + 10 * each + 0.1) == Numbers{9}, "now it is");
    expect(wire.arrived(1, 100 + 20 * each + 0.1).size() == 10, "and so the others");
  }
}

void two_senders_share_the_link_of_the_receiver() {
  WireTest wire(3, {.rate_mbit = 1000, .delay_us = 100});
  for (unsigned char number = 0; number < 10; ++number) {
    wire.send(0, 2, 1514, number);
    wire.send(1, 2, 1514, number);
  }
  expect(wire.arrived(2, 100 + 10 * 12.304 + 0.1).size() == 10, "half of them in that time");
  expect(wire.arrived(2, 100 + 20 * 12.304 + 0.1).size() == 10, "the others in twice that");
}

// The frame of 64 KiB leaves its sender's queue after 20 others; what arrives at its receiver from elsewhere meanwhile does not
// wait for it. A frame of 1514 bytes and one of 100 bytes take 123.04 us and 9.92 us.
void a_short_frame_does_not_wait_for_what_has_not_arrived() {
  WireTest wire(3, {.rate_mbit = 100, .delay_us = 1000});
  for (unsigned char number = 0; number < 20; ++number) wire.send(0, 2, 1514, number);
  wire.send(0, 2, 65536, 20);
  wire.send(1, 2, 100, 21);
  expect(wire.arrived(2, 1000 + 19.8).empty(),
         "the short frame shares the link with the first of them");
  expect(wire.arrived(2, 1000 + 19.9) == Numbers{21}, "and does not wait for the others");
  expect(wire.arrived(2, 1000 + 20 * 123.04 + 9.8).size() == 19,
         "it delays the others by its time,");
  expect(wire.arrived(2, 1000 + 20 * 123.04 + 10.0).size() == 1, "not by more");
}

void a_short_frame_does_not_wait_for_the_rest_of_a_long_one() {
  WireTest wire(3, {.rate_mbit = 100, .delay_us = 1000});
  wire.send(0, 2, 65536, 7);  // 44 frames on the wire: 5327.36 us
  wire.arrived(2, 2000);
  // Its first byte reaches the receiver when about 2000 us of the other's have.
  wire.send(1, 2, 100, 8);
  expect(wire.arrived(2, 3000 + 9.9).empty(), "it shares the link with the long one");
  expect(wire.arrived(2, 3000 + 20.0) == Numbers{8}, "byte by byte");
  expect(wire.arrived(2, 1000 + 5327.36 + 9.8).empty(),
         "the long one is late by the time of the short one,");
  expect(wire.arrived(2, 1000 + 5327.36 + 10.0) == Numbers{7}, "not by more");
}

void jitter_comes_on_top_and_nothing_overtakes() {
  WireTest wire(2, {.delay_us = 100, .jitter_us = 200});
  Numbers all, wanted;
  for (unsigned char number = 0; number < 50; ++number) {
    wire.send(0, 1, 100, number);
    wanted.push_back(number);
  }
  expect(wire.arrived(1, 99.9).empty(), "not before the delay");
  const Numbers some = wire.arrived(1, 200), rest = wire.arrived(1, 300.1);
  expect(some.size() < 50, "some are late");
  all = some;
  all.insert(all.end(), rest.begin(), rest.end());
  expect(all == wanted, "all of them, in order, within the delay and the jitter");
}

void a_frame_for_all_goes_to_all_others() {
  WireTest wire(3, {});
  wire.send(1, 255, 60, 7);
  expect(wire.arrived(0, 0) == Numbers{7} && wire.arrived(2, 0) == Numbers{7}, "the others");
  expect(wire.arrived(1, 0).empty(), "not the sender");
}

void some_frames_are_lost_and_the_others_keep_their_order() {
  WireTest wire(2, {.delay_us = 100, .loss = 0.25});
  for (unsigned char number = 0; number < 100; ++number) wire.send(0, 1, 100, number);
  const Numbers found = wire.arrived(1, 100.1);
  expect(found.size() > 50 && found.size() < 95, "about three of four");
  expect(std::ranges::is_sorted(found), "in order");
}

void hosts_can_be_cut_off() {
  WireTest wire(2, {.loss = 1});
  for (unsigned char number = 0; number < 50; ++number) wire.send(0, 1, 100, number);
  expect(wire.arrived(1, 1e6).empty(), "nothing arrives");
}

// A tenth of a second of frames is as much as waits for a link.
void a_full_queue_drops() {
  WireTest wire(2, {.rate_mbit = 1});
  for (unsigned char number = 0; number < 20; ++number) wire.send(0, 1, 1514, number);
  expect(wire.arrived(1, 1e6).size() == 9, "9 of 12.3 ms each, of which the last waits for less");
}

}  // namespace

}  // namespace hosts

int main() {
  using namespace hosts;
  for (void (*const test)() :
       {an_unlimited_wire_takes_no_time, a_frame_takes_the_delay_and_its_time_on_the_link,
        frames_share_the_rate_of_the_link, two_senders_share_the_link_of_the_receiver,
        a_short_frame_does_not_wait_for_what_has_not_arrived,
        a_short_frame_does_not_wait_for_the_rest_of_a_long_one,
        jitter_comes_on_top_and_nothing_overtakes, a_frame_for_all_goes_to_all_others,
        some_frames_are_lost_and_the_others_keep_their_order, hosts_can_be_cut_off,
        a_full_queue_drops}) {
    SteppedClock::time = {};
    test();
  }
  std::puts("all well");
}
