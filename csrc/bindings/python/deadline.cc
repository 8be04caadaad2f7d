// Logs a line if a call of MPI that cannot be interrupted does not return in time, and may end this process. In exit handlers
// Python starts no thread that could watch such a call, and MPI_Init_thread keeps Python's GIL; this thread is C++'s.
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
      : thread_([=, this] {
          pthread_setname_np(pthread_self(), "hvdlite-late");
          std::unique_lock lock(mutex_);
          const auto limit = std::chrono::duration<double>(std::min(seconds, kLongest));
          if (changed_.wait_for(lock, limit, [this] { return cancelled_; })) return;
          hvdlite_log(ends ? kErrorLevel : kWarningLevel, rank, size, "control", text.c_str());
          if (ends) _exit(1);
        }) {}
  ~Deadline() { cancel(); }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  void cancel() {
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
  std::thread thread_;  // the last member: it begins when the others exist
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
