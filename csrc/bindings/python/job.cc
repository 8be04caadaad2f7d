// The processes of a job while there is no engine, as a Python object.

#include <sys/types.h>
#include <unistd.h>

#include "binding.h"

namespace hvdlite::python {

using namespace nb::literals;

namespace {

// Thread: with the GIL held; released while a call waits or writes. Owns: its native job. Blocks: wait, tell, close. Throws:
// the classes of hvdlite.errors.
class Job {
 public:
  Job(const Utf8& shim_path, std::uintptr_t comm_address, bool takes_comm) : creator_(getpid()) {
    check(hvdlite_job_open(shim_path.c_str(), reinterpret_cast<const void*>(comm_address),
                           takes_comm ? 1 : 0, &job_));
  }
  // In a forked child the job's thread does not exist, and MPI belongs to the parent.
  ~Job() {
    if (getpid() != creator_) return;
    close();
    hvdlite_job_destroy(job_);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  bool wait(double seconds) {
    int done = 0;
    check_without_gil([&] { return hvdlite_job_wait(job_, seconds, &done); });
    return done != 0;
  }
  void set_limits(double patience, double silence) {
    check(hvdlite_job_set_limits(job_, patience, silence));
  }
  void gather(nb::bytes mine, bool bounded) {
    check(hvdlite_job_gather(job_, mine.data(), static_cast<std::int64_t>(mine.size()),
                             bounded ? 1 : 0));
  }
  nb::list values(std::int32_t size) {
    nb::list values;
    for (std::int32_t rank = 0; rank < size; ++rank) {
      const void* data = nullptr;
      std::int64_t bytes = 0;
      check(hvdlite_job_value(job_, rank, &data, &bytes));
      values.append(nb::bytes(data, static_cast<std::size_t>(bytes)));
    }
    return values;
  }
  void tell(const Utf8& cause) {
    check_without_gil([&] { return hvdlite_job_tell(job_, cause.c_str()); });
  }
  void kill_stopped() { check(hvdlite_job_kill_stopped(job_)); }
  void close() {
    const nb::gil_scoped_release released;
    hvdlite_job_close(job_);
  }

 private:
  hvdlite_job* job_ = nullptr;
  pid_t creator_;
};

}  // namespace

void register_job(nb::module_& module) {
  nb::class_<Job>(module, "Job", nb::is_final())
      .def(nb::init<const Utf8&, std::uintptr_t, bool>(), "shim_path"_a, "comm_address"_a,
           "takes_comm"_a = false)
      .def("wait", &Job::wait, "seconds"_a)
      .def("set_limits", &Job::set_limits, "patience"_a, "silence"_a)
      .def("gather", &Job::gather, "mine"_a, "bounded"_a)
      .def("values", &Job::values, "size"_a)
      .def("tell", &Job::tell, "cause"_a)
      .def("kill_stopped", &Job::kill_stopped)
      .def("close", &Job::close);
}

}  // namespace hvdlite::python
