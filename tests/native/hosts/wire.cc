#include "wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace hosts {

namespace {

constexpr Clock::duration kQueue = std::chrono::milliseconds(100);
// With segmentation offload a frame is up to 64 KiB, and a virtio_net_hdr before it says how to cut it.
constexpr std::size_t kHeader = 10;
constexpr std::size_t kLargestFrame = kHeader + 14 + 65536;
// What a frame takes on a real wire: so many payload bytes each, and preamble, checksum and gap around them.
constexpr std::size_t kFrame = 1514;
constexpr std::size_t kFrameOverhead = 24;

int check(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

ifreq request_for(const char* name) {
  ifreq request{};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  return request;
}

void bring_up(int socket, const char* name) {
  ifreq request = request_for(name);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  check(ioctl(socket, SIOCSIFFLAGS, &request), name);
}

// Gives an interface of this namespace its hardware address and 10.77.0.(port+1)/24.
void configure(const char* name, unsigned char number) {
  const int socket = check(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
  ifreq request = request_for(name);
  const unsigned char hardware[6] = {2, 0, 0, 0, 0, number};
  request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
  std::memcpy(request.ifr_hwaddr.sa_data, hardware, sizeof(hardware));
  check(ioctl(socket, SIOCSIFHWADDR, &request), "SIOCSIFHWADDR");

  const auto set_address = [&](unsigned long what, const unsigned char (&bytes)[4]) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    std::memcpy(&address.sin_addr, bytes, sizeof(bytes));
    request = request_for(name);
    std::memcpy(&request.ifr_addr, &address, sizeof(address));
    check(ioctl(socket, what, &request), "setting an address");
  };
  set_address(SIOCSIFADDR, {Wire::kNetwork[0], Wire::kNetwork[1], Wire::kNetwork[2], number});
  set_address(SIOCSIFNETMASK, {255, 255, 255, 0});
  bring_up(socket, "lo");
  bring_up(socket, name);
  close(socket);
}

}  // namespace

void Wire::add_port(const char* namespace_path) {
  const int home = check(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), "/proc/self/ns/net");
  const int there = check(open(namespace_path, O_RDONLY | O_CLOEXEC), namespace_path);
  check(setns(there, CLONE_NEWNET), "setns");
  const int device = check(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun");
  ifreq request = request_for("eth0");
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  check(ioctl(device, TUNSETIFF, &request), "TUNSETIFF");
  check(ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6), "TUNSETOFFLOAD");
  configure("eth0", static_cast<unsigned char>(ports_.size() + 1));
  check(setns(home, CLONE_NEWNET), "setns");
  close(there);
  close(home);
  add_device(device);
}

void Wire::add_device(int device) {
  Port port;
  port.device = device;
  ports_.push_back(std::move(port));
  for (Port& each : ports_) each.latest.resize(ports_.size());
  buffer_.resize(kLargestFrame);
}

bool Wire::carry(int other, Clock::time_point end) {
  std::vector<pollfd> polled(ports_.size() + 1);
  for (std::size_t i = 0; i < ports_.size(); ++i) polled[i] = {ports_[i].device, POLLIN, 0};
  polled.back() = {other, POLLIN, 0};
  while (true) {
    deliver_due();
    const Clock::time_point next =
        under_way_.empty() ? end : std::min(end, under_way_.begin()->first);
    const auto left =
        std::max<std::int64_t>((next - Clock::now()) / std::chrono::nanoseconds(1), 0);
    const timespec limit{left / 1'000'000'000, left % 1'000'000'000};
    if (ppoll(polled.data(), polled.size(), &limit, nullptr) < 0 && errno != EINTR) {
      check(-1, "ppoll");
    }
    if (polled.back().revents != 0) return true;
    if (Clock::now() >= end) return false;
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      // A bounded number from each, so that no host keeps the others from being heard.
      for (int n = 0; (polled[i].revents & POLLIN) != 0 && n < 64 && take(i); ++n) {
      }
    }
  }
}

// Reads one frame of this port and sends it where it belongs; false if there is none.
bool Wire::take(std::size_t from) {
  const ssize_t bytes = read(ports_[from].device, buffer_.data(), buffer_.size());
  if (bytes < static_cast<ssize_t>(kHeader + 14)) return false;
  const auto* const target = reinterpret_cast<const unsigned char*>(buffer_.data()) + kHeader;
  const std::size_t size = static_cast<std::size_t>(bytes) - kHeader;
  const std::size_t on_wire = size + (size + kFrame - 1) / kFrame * kFrameOverhead;
  const Clock::duration link_time =
      shape_.rate_mbit > 0 ? seconds(static_cast<double>(on_wire) * 8e-6 / shape_.rate_mbit)
                           : Clock::duration{};
  Port& sender = ports_[from];
  const Clock::time_point now = Clock::now();
  const Clock::time_point begin = std::max(now, sender.sends_until);
  if (begin - now > kQueue) return true;
  sender.sends_until = begin + link_time;
  const bool to_all = (target[0] & 1) != 0;
  for (std::size_t to = 0; to < ports_.size(); ++to) {
    if (to == from || (!to_all && target[5] != to + 1)) continue;
    send(from, to, sender.sends_until, link_time, static_cast<std::size_t>(bytes));
  }
  return true;
}

void Wire::send(std::size_t from, std::size_t to, Clock::time_point sent, Clock::duration link_time,
                std::size_t bytes) {
  std::uniform_real_distribution chance(0.0, 1.0);
  if (shape_.loss > 0 && chance(draw_) < shape_.loss) return;
  const Clock::time_point arrives =
      std::max(ports_[to].latest[from],
               sent + seconds((shape_.delay_us + chance(draw_) * shape_.jitter_us) * 1e-6));
  ports_[to].latest[from] = arrives;
  under_way_.emplace(
      arrives - link_time,
      Frame{Frame::Stage::kBegins, to, link_time,
            std::vector(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(bytes))});
}

void Wire::deliver_due() {
  while (!under_way_.empty() && under_way_.begin()->first <= Clock::now()) {
    auto next = under_way_.extract(under_way_.begin());
    Frame& frame = next.mapped();
    Port& receiver = ports_[frame.port];
    if (frame.stage == Frame::Stage::kLeaves) {
      // A frame that the host does not take (its interface is going down, say) is lost, as it would be on a wire.
      static_cast<void>(!write(receiver.device, frame.bytes.data(), frame.bytes.size()));
      continue;
    }
    receiver.count_backlog(next.key());
    if (frame.stage == Frame::Stage::kBegins) {
      ++receiver.arriving;
      next.key() += frame.link_time;
      frame.stage = Frame::Stage::kArrives;
    } else {
      --receiver.arriving;
      if (receiver.backlog > kQueue) continue;
      next.key() += receiver.backlog;
      frame.stage = Frame::Stage::kLeaves;
    }
    under_way_.insert(std::move(next));
  }
}

// All links have the same rate, so a frame adds a second of backlog a second while it arrives, and the link takes one away.
void Wire::Port::count_backlog(Clock::time_point time) {
  backlog = std::max(Clock::duration{}, backlog + (arriving - 1) * (time - known));
  known = time;
}

}  // namespace hosts
