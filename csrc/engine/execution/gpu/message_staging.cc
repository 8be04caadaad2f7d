// The states of a send, and the action of fetch() in each:
//
//    memory is empty                       allocate it; have the watcher ring when the tensor is ready; then as below
//    memory, but no event; not ready       nothing
//    memory, but no event; ready           copy, record the event `arrived`, have the watcher ring after it
//    the event `arrived`                   look whether the GPU has reached it
//
// A receive needs no state: room_for() comes before the message, bring() after it. The copy of bring() waits in its stream
// until the receiver's tensor is ready, and copies of later receives on that GPU wait behind it. No message waits for these
// copies, because the engine has already ended the receives.
//
// If the driver fails between a copy and its event, is_copying stays true. Then the engine cannot know when the copy ends, and
// Transfers::close() never frees the memory.
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

// The pool asks for a stream, but does not use it for page-locked memory.
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

// Looks at the oldest copy first. finished() throws if the GPU has failed, and the error names the receive.
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
