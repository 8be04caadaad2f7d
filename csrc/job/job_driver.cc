#include "job/job_driver.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>

#include "base/files.h"
#include "base/thread.h"

namespace hvdlite::job {

using base::Clock;
using base::microseconds;

namespace {

// The time between two looks of a waiting thread. It grows, so that a long wait uses almost no processor time.
constexpr microseconds kFirstPause{10}, kLongestPause{20'000};

// The kernel and the pid namespace of this process (Card::system). If they are not known, the text is unique, so the process
// counts as alone on its system.
std::string system_of_this_process(const std::string& host) {
  const std::string boot = base::first_line_of("/proc/sys/kernel/random/boot_id");
  struct stat namespace_of_pids = {};
  if (boot.empty() || stat("/proc/self/ns/pid", &namespace_of_pids) != 0) {
    return host + " alone " + std::to_string(getpid());
  }
  return boot + " " + std::to_string(namespace_of_pids.st_ino);
}

Card card_of_this_process(bool sends_heartbeats) {
  char host[64] = {};
  gethostname(host, sizeof(host) - 1);
  return {host, getpid(), system_of_this_process(host), sends_heartbeats};
}

}  // namespace

JobDriver::JobDriver(const char* shim_path, const void* comm_address, bool takes_comm)
    : entrance_(std::make_unique<transport::MpiEntrance>(shim_path, comm_address, takes_comm)),
      takes_threads_(entrance_->takes_threads()) {}

bool JobDriver::pass() {
  if (entrance_ != nullptr) {
    if (!entrance_->open()) return false;
    job_ = std::make_unique<Job>(entrance_->take(), base::TimeSource(),
                                 card_of_this_process(takes_threads_), watch_processes);
    entrance_.reset();
  }
  return job_->pass();
}

bool JobDriver::wait(microseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  for (microseconds pause = kFirstPause;; pause = std::min(pause * 3 / 2, kLongestPause)) {
    {
      const std::lock_guard lock(mutex_);
      if (pass()) return true;
    }
    const auto left = std::chrono::duration_cast<microseconds>(end - Clock::now());
    if (left.count() <= 0) return false;
    std::this_thread::sleep_for(std::min(pause, left));
  }
}

void JobDriver::set_limits(Job::Limits limits) {
  with([&](Job& job) { job.set_limits(limits); });
  if (job_->sends_heartbeats() && !thread_.joinable())
    thread_ = std::jthread([this](const std::stop_token& ending) { send_heartbeats(ending); });
}

void JobDriver::send_heartbeats(const std::stop_token& ending) {
  base::name_this_thread("hvdlite-hosts");
  std::unique_lock lock(mutex_);
  std::condition_variable_any pause;
  while (!ending.stop_requested()) {
    pause.wait_for(lock, ending, job_->look_interval(), [] { return false; });
    if (!ending.stop_requested()) job_->look();
  }
}

void JobDriver::tell(const std::string& cause) {
  with([&](Job& job) { job.tell(cause); });
  const auto told = [](Job& job) {
    job.look();
    return job.told();
  };
  while (!with(told)) std::this_thread::sleep_for(microseconds(1000));
}

void JobDriver::close() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  job_.reset();
  entrance_.reset();
}

}  // namespace hvdlite::job
