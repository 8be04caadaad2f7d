#include "job/neighbours.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/process.h"

namespace hvdlite::job {
namespace {

// The numbers of the system calls; the C library has had functions for them only since 2022.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

class Processes final : public Neighbours {
 public:
  explicit Processes(const std::vector<int>& pids) : pids_(pids) {
    for (const int pid : pids) {
      const int descriptor = pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1;
      descriptors_.push_back(descriptor);
      gone_.push_back(pid > 0 && descriptor < 0 && errno == ESRCH);
    }
  }
  ~Processes() override {
    for (const int descriptor : descriptors_) {
      if (descriptor >= 0) close(descriptor);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  bool has_ended(int rank) override {
    if (gone_[static_cast<std::size_t>(rank)]) return true;
    pollfd entry = {descriptor_of(rank), POLLIN, 0};  // poll skips a negative descriptor
    return poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
  }
  bool is_stopped(int rank) override {
    if (descriptor_of(rank) < 0) return false;
    const char state = base::state_of_process(pids_[static_cast<std::size_t>(rank)]);
    return state == 'T' || state == 't';
  }
  void kill(int rank) override {
    const int descriptor = descriptor_of(rank);
    if (descriptor >= 0) syscall(SYS_pidfd_send_signal, descriptor, SIGKILL, nullptr, 0);
  }

 private:
  int descriptor_of(int rank) const { return descriptors_[static_cast<std::size_t>(rank)]; }

  std::vector<int> pids_;
  // By rank.
  std::vector<int> descriptors_;
  std::vector<bool> gone_;  // it ended before this object was made, so it has no descriptor
};

}  // namespace

std::unique_ptr<Neighbours> watch_processes(const std::vector<int>& pids) {
  return std::make_unique<Processes>(pids);
}

}  // namespace hvdlite::job
