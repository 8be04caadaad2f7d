// The completion thread: sleeps until the GPU reaches the next event that an operation polls for, and wakes the thread that
// drives the engine.
// Thread: the holder of the progress token calls watch, and the first watch starts the thread. Owns: its thread, and the events
// until they have come. Blocks: stop, for 0.2 s at most. Throws: std::system_error if no thread can be started.
//
// The thread sleeps in the driver on one event after the other. If a later event comes earlier, the engine's own timed looks
// notice it. A GPU that hangs would keep the thread for ever, so stop() leaves such a thread behind; it no longer touches the
// engine.
#pragma once

#include <functional>
#include <memory>

#include "device/gpu.h"

namespace hvdlite::engine {

class DeviceWatcher {
 public:
  explicit DeviceWatcher(std::function<void()> ring) : ring_(std::move(ring)) {}
  ~DeviceWatcher() { stop(); }
  DeviceWatcher(const DeviceWatcher&) = delete;
  DeviceWatcher& operator=(const DeviceWatcher&) = delete;

  void watch(device::EventPtr event);
  void stop();

 private:
  struct State;
  std::function<void()> ring_;
  std::shared_ptr<State> state_;
};

}  // namespace hvdlite::engine
