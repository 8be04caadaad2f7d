// The thread that waits for the GPU's events, on a machine that gives no thread.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>

#include "device_test.h"
#include "engine/execution/gpu/device_watcher.h"

using namespace device_test;

namespace {

// While it lives, the address space has no room for the stack of a thread, but for all else.
class NoRoomForThreads {
 public:
  NoRoomForThreads() {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    const rlim_t used = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
    const rlimit limit{used + (rlim_t{4} << 20), before_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  ~NoRoomForThreads() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_;
};

}  // namespace

TEST(a_watcher_that_gets_no_thread_names_the_remedy_and_tries_again) {
  const device::GpuPtr gpu = open_gpu();
  const device::OwnStream stream(gpu);
  std::mutex mutex;
  std::condition_variable changed;
  bool rung = false;
  hvdlite::engine::DeviceWatcher watcher([&] {
    const std::lock_guard lock(mutex);
    rung = true;
    changed.notify_all();
  });
  gpu->record(stream.get())->synchronize();  // so that the driver has its thread
  {
    const NoRoomForThreads none;
    EXPECT(error_of(ErrorCode::kSystem, [&] {
             watcher.watch(gpu->record(stream.get()));
           }).find("raise the limit to threads") != std::string::npos);
  }
  watcher.watch(gpu->record(stream.get()));
  std::unique_lock lock(mutex);
  EXPECT(changed.wait_for(lock, std::chrono::seconds(60), [&] { return rung; }));
}
