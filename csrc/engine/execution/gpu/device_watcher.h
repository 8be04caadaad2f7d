// The completion thread: sleeps until the GPU reaches the next event that an operation polls for, and then wakes the thread
// that drives the engine.
// Thread: the holder of the progress token calls watch and stop, and the first watch starts the thread. Owns: its thread, and
// each event until the GPU has reached it. Blocks: stop, for 0.2 s at most. Throws: Error(System) if no thread can be started,
// std::bad_alloc.
//
// The thread waits in the driver for one event after the other, in the order of the calls of watch. If the GPU reaches a later
// event first, the thread does not notice that, but the engine does, in its passes at short intervals (pacing.cc). If the GPU
// hangs, the thread may never return from the driver. In that case stop() returns although the thread has not ended, and the
// thread calls `ring` no more.
#pragma once

#include <functional>
#include <memory>

#include "device/gpu.h"

namespace hvdlite::engine {

class DeviceWatcher {
 public:
  // ring: wakes the thread that drives the engine. The completion thread calls `ring` while it holds this object's lock. So
  // `ring` must call no function of this object, and throw nothing.
  explicit DeviceWatcher(std::function<void()> ring) : ring_(std::move(ring)) {}
  ~DeviceWatcher() { stop(); }
  DeviceWatcher(const DeviceWatcher&) = delete;
  DeviceWatcher& operator=(const DeviceWatcher&) = delete;

  void watch(device::EventPtr event);
  // Tells the thread to end, and waits for its end, 0.2 s at most. Afterwards the thread does not call `ring` any more, and the
  // owner must not call watch().
  void stop();

 private:
  struct State;
  std::function<void()> ring_;
  std::shared_ptr<State> state_;
};

}  // namespace hvdlite::engine
