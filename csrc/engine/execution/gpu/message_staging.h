// Copies GPU tensors to page-locked memory before they are sent to another rank, and copies received messages from page-locked
// memory to GPU tensors.
// Thread: the holder of the progress token. Owns: two streams for each GPU, and the events of unfinished copies to tensors.
// Blocks: as operation.h says. Throws: what the GPU's driver throws.
//
//   send      the tensor is ready -> copy to page-locked memory, record an event -> after the event the message is sent
//   receive   the message is in page-locked memory -> copy to the tensor when the tensor is ready, record the completion event
//
// A send enqueues its copy only when the tensor is ready. So no copy in the stream of the sends waits for a tensor, and a
// message waits only for its own tensor and for those of earlier messages to the same rank. A receive ends when its copy is
// enqueued, as collectives on GPU memory do. A send ends when the message has been sent.
#pragma once

#include <deque>
#include <map>

#include "device/devices.h"
#include "engine/execution/gpu/device_watcher.h"
#include "engine/model/entry.h"

namespace hvdlite::engine {

// The page-locked memory of one message. It is empty until fetch() (for a send) or room_for() (for a receive) allocates memory,
// and stays empty if the tensor is in host memory or has no bytes.
struct StagedMemory {
  device::Buffer host;
  device::EventPtr arrived = {};  // only for a send: the event after its copy to page-locked memory
  // True after a copy was enqueued, until its event is recorded. It stays true if the driver fails to record the event.
  bool is_copying = false;
};

class MessageStaging {
 public:
  MessageStaging(device::Devices& devices, DeviceWatcher& watcher)
      : devices_(devices), watcher_(watcher) {}

  // For a send: when the tensor is ready, enqueues the copy to page-locked memory. Returns true when the copy is complete.
  bool fetch(const Entry& entry, StagedMemory* memory);
  // Allocates page-locked memory as large as the tensor. Call room_for() for a receive; for a send, fetch() calls it.
  StagedMemory room_for(const Entry& entry);
  // For a receive: enqueues the copy from page-locked memory to the tensor, and gives the completion its event.
  void bring(const Entry& entry, StagedMemory* memory);
  // Forgets the finished copies to tensors. Returns true if there were any.
  bool look_after();
  // Has the GPU done all copies to tensors?
  bool settled() const { return returned_.empty(); }

 private:
  struct OwnStreams {
    explicit OwnStreams(const device::GpuPtr& gpu) : fetches(gpu), returns(gpu) {}
    device::OwnStream fetches, returns;
  };
  struct Returned {
    device::EventPtr event;
    RequestPtr request;
  };
  OwnStreams& streams_of(const Entry& entry);

  device::Devices& devices_;
  DeviceWatcher& watcher_;
  std::map<int, OwnStreams> streams_;  // by GPU
  std::deque<Returned> returned_;
};

}  // namespace hvdlite::engine
