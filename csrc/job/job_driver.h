// Drives a Job while there is no engine. A waiting thread looks again and again. Between waits, a thread of the driver looks at
// intervals, if ranks of other hosts rely on heartbeats.
// Thread: any; one waits at a time. Owns: the Job, and the thread. Blocks: wait(); tell(), for a moment; close(), until a
// running look has ended. Throws: what MpiEntrance and Job::pass throw; set_limits: std::system_error if no thread can be
// started.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "job/job.h"
#include "transport/mpi_entrance.h"

namespace hvdlite::job {

class JobDriver {
 public:
  // The job of an MPI communicator's ranks. All of them must make one, and wait() until they know each other.
  JobDriver(const char* shim_path, const void* comm_address, bool takes_comm);
  ~JobDriver() { close(); }
  JobDriver(const JobDriver&) = delete;
  JobDriver& operator=(const JobDriver&) = delete;

  // Looks until the current exchange has ended, for at most `limit`. Returns true if it has ended.
  bool wait(base::microseconds limit);
  // Calls use(job) while no thread looks. Allowed after the ranks know each other.
  template <typename Use>
  auto with(Use use) {
    const std::lock_guard lock(mutex_);
    HVD_CHECK(job_ != nullptr);
    return use(*job_);
  }
  void set_limits(Job::Limits limits);
  // Tells the waiting ranks why this process fails. Waits a moment for the text to leave this process.
  void tell(const std::string& cause);
  // Called before MPI ends: stops looking. Call no function after it, except close().
  void close();

 private:
  bool pass();
  void send_heartbeats(const std::stop_token& ending);

  std::mutex mutex_;  // guards the two members below, of which at most one is not null
  std::unique_ptr<transport::MpiEntrance> entrance_;
  std::unique_ptr<Job> job_;
  bool takes_threads_;
  std::jthread thread_;
};

}  // namespace hvdlite::job
