// The jobs of hvdlite.h over JobDriver.
#include <string>
#include <vector>

#include "c_api/c_api.h"
#include "job/job_driver.h"

using hvdlite::engine::guarded;
using hvdlite::engine::require;
using hvdlite::job::Job;

struct hvdlite_job {
  hvdlite::job::JobDriver driver;
  std::vector<hvdlite::job::Bytes> values;  // of the last exchange, by rank
};

int hvdlite_job_open(const char* shim_path, const void* comm_address, int takes_comm,
                     hvdlite_job** out) {
  return guarded([&] {
    require(shim_path != nullptr && comm_address != nullptr, "no shim or no communicator");
    *out = new hvdlite_job{{shim_path, comm_address, takes_comm != 0}, {}};
  });
}

int hvdlite_job_wait(hvdlite_job* job, double seconds, int* done) {
  return guarded([&] {
    require(job != nullptr, "no job");
    const bool ended = job->driver.wait(hvdlite::base::from_seconds(seconds));
    if (ended) job->values = job->driver.with([](Job& each) { return each.values(); });
    *done = ended ? 1 : 0;
  });
}

int hvdlite_job_set_limits(hvdlite_job* job, double patience, double silence) {
  return guarded([&] { job->driver.set_limits({patience, silence}); });
}

int hvdlite_job_gather(hvdlite_job* job, const void* data, int64_t bytes, int bounded) {
  return guarded([&] {
    const auto* first = static_cast<const std::byte*>(data);
    job->driver.with(
        [&](Job& each) { each.begin({first, first + bytes}, /*bounded=*/bounded != 0); });
  });
}

int hvdlite_job_value(hvdlite_job* job, int32_t rank, const void** data, int64_t* bytes) {
  return guarded([&] {
    require(rank >= 0 && static_cast<std::size_t>(rank) < job->values.size(),
            "the job has no value of rank " + std::to_string(rank));
    const hvdlite::job::Bytes& value = job->values[static_cast<std::size_t>(rank)];
    *data = value.data();
    *bytes = static_cast<int64_t>(value.size());
  });
}

int hvdlite_job_tell(hvdlite_job* job, const char* cause) {
  return guarded([&] { job->driver.tell(cause); });
}

int hvdlite_job_kill_stopped(hvdlite_job* job) {
  return guarded([&] { job->driver.with([](Job& each) { each.kill_the_stopped(); }); });
}

void hvdlite_job_close(hvdlite_job* job) { job->driver.close(); }
void hvdlite_job_destroy(hvdlite_job* job) { delete job; }
