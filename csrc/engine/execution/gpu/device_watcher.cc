// The completion thread (device_watcher.h) waits in the driver without the lock. So watch() never waits for the GPU. The thread
// has no pointer to the DeviceWatcher; they share only the State. So the DeviceWatcher may be destroyed even if the thread has
// not ended when stop() returns. Such a thread ends when the driver returns.
//
// The thread calls `ring` while it has the lock, and stop() clears `ring` while it has the lock. So no call of `ring` is under
// way when stop() returns, even if the thread has not ended.
#include "engine/execution/gpu/device_watcher.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/thread.h"

namespace hvdlite::engine {

namespace {

// The longest time for which stop() waits until the thread returns from the driver.
constexpr std::chrono::milliseconds kEndingPatience{200};

}  // namespace

// The objects that the thread and the DeviceWatcher share.
struct DeviceWatcher::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<device::EventPtr> events;
  std::function<void()> ring;  // wakes the engine; empty after stop()
  bool ended = false;

  void run() {
    base::name_this_thread("hvdlite-gpu");
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return !events.empty() || !ring; });
      if (!ring) break;
      device::EventPtr next = std::move(events.front());
      events.pop_front();
      lock.unlock();
      try {
        next->synchronize();
      } catch (const base::Error&) {  // the operation that polls for this event gets the same error
      }
      next.reset();
      lock.lock();
      if (ring) ring();
    }
    events.clear();
    ended = true;
    changed.notify_all();
  }
};

// The thread starts here, and not in the constructor, so that a job that watches no event has no such thread.
void DeviceWatcher::watch(device::EventPtr event) {
  if (!state_) {
    const auto state = std::make_shared<State>();
    state->ring = ring_;
    try {
      std::thread([state] { state->run(); }).detach();
    } catch (const std::system_error& error) {
      throw base::no_thread(error);
    }
    state_ = state;
  }
  const std::lock_guard lock(state_->mutex);
  state_->events.push_back(std::move(event));
  state_->changed.notify_all();
}

void DeviceWatcher::stop() {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  state_->ring = nullptr;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kEndingPatience, [&] { return state_->ended; });
  lock.unlock();
  state_.reset();
}

}  // namespace hvdlite::engine
