// A job without an engine as a Python object.
// Thread: with the GIL held; released while a call waits or writes. Owns: its native job. Blocks: wait, tell, close.
// Throws: the classes of hvdlite.errors.
#pragma once

#include <sys/types.h>

#include "binding.h"

namespace hvdlite::python {

class Job {
 public:
  Job(const Utf8& shim_path, std::uintptr_t comm_address, bool takes_comm);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  bool wait(double seconds);
  void set_limits(double patience, double silence);
  void gather(nb::bytes mine, bool bounded);
  nb::list values(std::int32_t size);
  void tell(const Utf8& cause);
  void kill_stopped();
  void close();

 private:
  hvdlite_job* job_ = nullptr;
  pid_t creator_;
};

}  // namespace hvdlite::python
