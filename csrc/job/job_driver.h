// Drives a Job where there is no engine that could: whoever waits looks again and again, and between waits a thread looks now and then
// where ranks of other hosts count on signs of life.
// Thread: any; one waits at a time. Owns: the Job, and the thread. Blocks: wait(); close() for the rest of a look.
// Throws: what Job::pass throws.
#pragma once

#include <condition_variable>
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
  // The job of the ranks of an MPI communicator. All of them have to make one, and wait() until they know each other.
  JobDriver(const char* shim_path, const void* comm_address);
  ~JobDriver() { close(); }
  JobDriver(const JobDriver&) = delete;
  JobDriver& operator=(const JobDriver&) = delete;

  // Looks until the exchange under way has ended, at most so long; true if it has.
  bool wait(base::microseconds limit);
  // Runs use(job) while nobody looks. Not before the ranks know each other.
  template <typename Use>
  auto with(Use use) {
    const std::lock_guard lock(mutex_);
    HVD_CHECK(job_ != nullptr);
    return use(*job_);
  }
  void set_limits(Job::Limits limits);
  // Says it to those that wait here, and waits until the words have left this process, for a moment at most.
  void tell(const std::string& cause);
  // Before MPI ends: looks no more, and no other function may be called.
  void close();

 private:
  bool pass();
  void give_signs();

  std::mutex mutex_;  // guards the two below: one of them is null
  std::unique_ptr<transport::MpiEntrance> entrance_;
  std::unique_ptr<Job> job_;
  bool takes_threads_;
  std::condition_variable ending_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace hvdlite::job
