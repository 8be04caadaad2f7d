// The completion thread: sleeps until the GPU has come to the next event that somebody polls for, and wakes whoever drives.
// Thread: watch by the holder of the progress token; the thread is started by the first watch. Owns: its thread, the events
// until they have come. Blocks: stop, for a moment. Throws: std::system_error if there can be no thread.
//
// It sleeps in the driver, one event after the other: a later one that comes earlier is noticed by the engine's own timed looks.
// A GPU that hangs would keep it for ever, so stop leaves it behind then; it touches nothing of the engine any more.
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
