// Several emulated hosts on one machine, for tests: each has its own network, host name, processes, System V IPC, mounts and
// /dev/shm, as far as programs (MPI among them) can tell, and all are joined by a switch (wire.h).
//
//   hosts NUMBER TTL_SECONDS
//
//   stdin   "RATE_MBIT DELAY_US JITTER_US\n" shapes the wire; its end ends everything
//   stdout  "FRONT_PID PID0 PID1 ...\n" once all is ready; "shaped\n" for each line of stdin
//   exit    0 at the end of stdin or of the time to live, 77 if this machine or container does not allow it, 1 for failures
//
// The tree of processes, each below its parent in a process namespace of its own:
//
//   hosts                 what was started; waits
//     front (pid 1)       the switch, and the host where a launcher runs: the last port of the switch
//       h0 (pid 1), h1..  one a host: does nothing but keep the namespaces alive and reap
//
// A process namespace ends with its first process, and each process here ends with its parent. So whatever ends first, the
// starter (end of stdin), `hosts` or the front, everything that runs on the hosts is killed and all namespaces vanish. Nothing
// has a name outside, so any number of these can run side by side. FRONT_PID is as seen from outside, PID0... as seen from the
// front: a launcher on the front enters host k with `nsenter --target PIDk`.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "wire.h"

namespace {

constexpr int kNotAllowed = 77;

int check(long result, const std::string& what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return static_cast<int>(result);
}

// A fork into namespaces of its own; the child ends with its parent.
pid_t fork_apart() {
  int tied[2];
  check(pipe2(tied, O_CLOEXEC), "pipe");
  const unsigned long flags =
      CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNS | SIGCHLD;
  const pid_t child = check(syscall(SYS_clone, flags, 0, 0, 0, 0), "making namespaces");
  char byte = 0;
  if (child == 0) {
    check(prctl(PR_SET_PDEATHSIG, SIGKILL), "PR_SET_PDEATHSIG");
    signal(SIGCHLD, SIG_IGN);  // orphans that come to this process are reaped by the kernel
    close(tied[0]);
    // The parent lives, or this would fail; from here on its end is ours.
    check(write(tied[1], &byte, 1), "the parent has ended");
    close(tied[1]);
    return 0;
  }
  close(tied[1]);
  const bool is_tied = read(tied[0], &byte, 1) == 1;
  close(tied[0]);
  if (!is_tied) throw std::runtime_error("a host ended early");
  return child;
}

// Within its namespaces: makes this process's surroundings look like a host's.
void furnish(const std::string& name, int hosts) {
  check(sethostname(name.data(), name.size()), "sethostname");
  check(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), "making mounts private");
  check(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr),
        "mounting /proc");
  check(mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"),
        "mounting /dev/shm");
  check(mkdir("/dev/shm/tmp", 01777), "mkdir /dev/shm/tmp");
  std::FILE* const table = std::fopen("/dev/shm/hosts", "we");
  if (table == nullptr) check(-1, "/dev/shm/hosts");
  std::fprintf(table, "127.0.0.1 localhost\n");
  for (int k = 0; k <= hosts; ++k) {
    const auto& network = hosts::Wire::kNetwork;
    std::fprintf(table, "%d.%d.%d.%d %s\n", network[0], network[1], network[2], k + 1,
                 k == hosts ? "front" : ("h" + std::to_string(k)).c_str());
  }
  std::fclose(table);
  check(mount("/dev/shm/hosts", "/etc/hosts", nullptr, MS_BIND, nullptr), "mounting /etc/hosts");
}

// The first process of a host.
[[noreturn]] void be_host(const std::string& name, int hosts, int ready) {
  furnish(name, hosts);
  const char byte = 0;
  check(write(ready, &byte, 1), "the front has ended");
  while (true) pause();
}

pid_t start_host(int index, int hosts) {
  int ready[2];
  check(pipe2(ready, O_CLOEXEC), "pipe");
  const pid_t child = fork_apart();
  if (child == 0) {
    close(ready[0]);
    be_host("h" + std::to_string(index), hosts, ready[1]);
  }
  close(ready[1]);
  char byte = 0;
  const bool is_ready = read(ready[0], &byte, 1) == 1;
  close(ready[0]);
  if (!is_ready) throw std::runtime_error("host " + std::to_string(index) + " ended early");
  return child;
}

// Obeys stdin until it ends or the time is over.
void serve(hosts::Wire& wire, hosts::Clock::time_point end) {
  std::string line;
  while (wire.carry(STDIN_FILENO, end)) {
    char text[256];
    const ssize_t bytes = read(STDIN_FILENO, text, sizeof(text));
    if (bytes <= 0) return;
    line.append(text, static_cast<std::size_t>(bytes));
    for (std::size_t stop = line.find('\n'); stop != std::string::npos; stop = line.find('\n')) {
      hosts::Shape shape;
      if (std::sscanf(line.c_str(), "%lf %lf %lf %lf", &shape.rate_mbit, &shape.delay_us,
                      &shape.jitter_us, &shape.loss) != 4) {
        throw std::runtime_error("not a shape: " + line.substr(0, stop));
      }
      line.erase(0, stop + 1);
      wire.set_shape(shape);
      std::puts("shaped");
      std::fflush(stdout);
    }
  }
}

void be_front(int hosts, double seconds, pid_t front_outside) {
  const auto end = hosts::Clock::now() + std::chrono::duration_cast<hosts::Clock::duration>(
                                             std::chrono::duration<double>(seconds));
  furnish("front", hosts);
  hosts::Wire wire;
  std::string pids = std::to_string(front_outside);
  for (int k = 0; k < hosts; ++k) {
    const std::string pid = std::to_string(start_host(k, hosts));
    wire.add_port(("/proc/" + pid + "/ns/net").c_str());
    pids += " " + pid;
  }
  wire.add_port("/proc/self/ns/net");
  // The wire should not wait for processors that programs keep busy; where the system refuses, times are less exact.
  const sched_param priority{1};
  static_cast<void>(sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &priority));
  check(prctl(PR_SET_TIMERSLACK, 1000UL), "PR_SET_TIMERSLACK");
  std::puts(pids.c_str());
  std::fflush(stdout);
  serve(wire, end);
}

int run(int hosts, double seconds) {
  int outside[2];
  check(pipe2(outside, O_CLOEXEC), "pipe");
  const pid_t front = fork_apart();
  pid_t pid = front;
  if (front == 0) {
    check(read(outside[0], &pid, sizeof(pid)), "the parent has ended");
    be_front(hosts, seconds, pid);
    return 0;
  }
  check(write(outside[1], &pid, sizeof(pid)), "the front has ended");
  int status = 0;
  check(waitpid(front, &status, 0), "waitpid");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int hosts = argc == 3 ? std::atoi(argv[1]) : 0;
  if (hosts < 1 || hosts > 250) {
    std::fputs("usage: hosts NUMBER TTL_SECONDS\n", stderr);
    return 1;
  }
  try {
    return run(hosts, std::atof(argv[2]));
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "hosts: %s\n", error.what());
    const int why = error.code().value();
    return why == EPERM || why == EACCES || why == ENOENT || why == ENOSYS ? kNotAllowed : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hosts: %s\n", error.what());
    return 1;
  }
}
