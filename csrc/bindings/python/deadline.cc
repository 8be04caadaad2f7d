// Watches a call of MPI that cannot be interrupted. If the call does not return in time, logs a line, and ends this process if
// `ends` is true. A thread of C++ watches the call: in exit handlers Python starts no thread, and during MPI_Init_thread no
// other thread gets Python's GIL.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "binding.h"

namespace hvdlite::python {
namespace {

// A time that can be added to now: about 95 years.
constexpr double kLongest = 3e9;

// Thread: any. Owns: its thread. Blocks: no. Throws: std::system_error if there is no thread left.
class Deadline {
 public:
  Deadline(double seconds, int rank, int size, const Utf8& text, bool ends)
      : thread_([=](const std::stop_token& cancelled) {
          pthread_setname_np(pthread_self(), "hvdlite-late");
          std::mutex mutex;
          std::unique_lock lock(mutex);
          const auto limit = std::chrono::duration<double>(std::min(seconds, kLongest));
          std::condition_variable_any().wait_for(lock, cancelled, limit, [] { return false; });
          if (cancelled.stop_requested()) return;
          hvdlite_log(ends ? kErrorLevel : kWarningLevel, rank, size, "control", text.c_str());
          if (ends) _exit(1);
        }) {}

  void cancel() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::jthread thread_;
};

}  // namespace

void register_deadline(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Deadline>(module, "Deadline", nb::is_final())
      .def(nb::init<double, int, int, const Utf8&, bool>(), "seconds"_a, "rank"_a, "size"_a,
           "text"_a, "ends"_a = true)
      .def("cancel", &Deadline::cancel);
}

}  // namespace hvdlite::python
