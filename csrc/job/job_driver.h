// Drives a Job while there is no engine. While a thread waits, it looks again and again (job.h). If ranks of other hosts rely
// on this rank's heartbeats, a thread of the driver looks at intervals, also between waits.
// Thread: any, but only one thread waits at a time. Owns: the Job, and the driver's thread. Blocks: wait(); tell(), for a
// moment; close(), until a running look has ended. Throws: what MpiEntrance and Job::pass throw; set_limits: std::system_error
// if no thread can be started.
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
  // The job of an MPI communicator's ranks. All these ranks must make a JobDriver, and call wait() until they know each other.
  // The parameters are those of MpiEntrance.
  JobDriver(const char* shim_path, const void* comm_address, bool takes_comm);
  ~JobDriver() { close(); }
  JobDriver(const JobDriver&) = delete;
  JobDriver& operator=(const JobDriver&) = delete;

  // Looks until the current exchange has ended, for at most `limit`. Returns true if it has ended.
  bool wait(base::microseconds limit);
  // Calls use(job) while no thread looks. Allowed only after the ranks know each other: after wait() has returned true once.
  template <typename Use>
  auto with(Use use) {
    const std::lock_guard lock(mutex_);
    HVD_CHECK(job_ != nullptr);
    return use(*job_);
  }
  void set_limits(Job::Limits limits);
  // Tells the other ranks, which wait, why this process fails. Waits a moment until the text has left this process.
  void tell(const std::string& cause);
  // Ends all looks. Call it before MPI ends. After it, only close() may be called.
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
