// The states of a send, and the action of fetch() in each:
//
//    no memory                                        allocate it; give the watcher the event `ready`; go on as in row 2 or 3
//    memory, no event `arrived`; tensor not ready     nothing
//    memory, no event `arrived`; tensor ready         copy; record `arrived`; give it to the watcher; go on as in the last row
//    memory and `arrived`                             look whether the GPU has reached `arrived`
//
// A receive needs no such states: Transfers calls room_for() for the memory into which the message arrives, and bring() when
// the message is there. The copy of bring() waits in its stream until the tensor is ready, and copies of later receives on that
// GPU wait behind it. No message waits for these copies, because a receive ends when its copy is enqueued.
//
// If the driver fails between a copy and its event, is_copying stays true. Then the engine cannot know when the copy ends, so
// Transfers::close() abandons the memory: it is never freed.
#include "engine/execution/gpu/message_staging.h"

namespace hvdlite::engine {

MessageStaging::OwnStreams& MessageStaging::streams_of(const Entry& entry) {
  const int gpu = entry.request->device;
  return streams_.try_emplace(gpu, devices_.device(gpu).gpu).first->second;
}

bool MessageStaging::fetch(const Entry& entry, StagedMemory* memory) {
  if (memory->arrived) return memory->arrived->finished();
  if (!memory->host) {
    *memory = room_for(entry);
    watcher_.watch(entry.ready);
  }
  if (!entry.ready->finished()) return false;
  device::Device& device = devices_.device(entry.request->device);
  const device::cuda::Stream stream = streams_of(entry).fetches.get();
  device.gpu->copy(memory->host.data(), entry.input, entry.request->bytes(), stream);
  memory->is_copying = true;
  memory->arrived = device.gpu->record(stream);
  memory->is_copying = false;
  memory->host.free_after(memory->arrived);
  device.memory->used(entry.input, memory->arrived);
  watcher_.watch(memory->arrived);
  return memory->arrived->finished();
}

// The pool's get() has a stream as an argument, but does not use it for page-locked memory.
StagedMemory MessageStaging::room_for(const Entry& entry) {
  device::Device& device = devices_.device(entry.request->device);
  return {device.pinned->get(entry.request->bytes(), streams_of(entry).returns.get())};
}

void MessageStaging::bring(const Entry& entry, StagedMemory* memory) {
  device::Device& device = devices_.device(entry.request->device);
  const device::cuda::Stream stream = streams_of(entry).returns.get();
  entry.ready->order(stream);
  device.gpu->copy(entry.output, memory->host.data(), entry.request->bytes(), stream);
  memory->is_copying = true;
  const device::EventPtr done = device.gpu->record(stream);
  memory->is_copying = false;
  memory->host.free_after(done);
  device.memory->used(entry.output, done);
  entry.completion->event = done;
  returned_.push_back({done, entry.request});
}

// Looks at the oldest copy first, and stops at the first unfinished copy. If the GPU has failed, the error names the receive.
bool MessageStaging::look_after() {
  bool any = false;
  while (!returned_.empty()) {
    const Returned& oldest = returned_.front();
    if (!naming(*oldest.request, [&] { return oldest.event->finished(); })) break;
    returned_.pop_front();
    any = true;
  }
  return any;
}

}  // namespace hvdlite::engine
