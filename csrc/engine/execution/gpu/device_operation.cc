// What an operation enqueues, and in which stream:
//
//    step                        NcclOperation     StagedOperation
//    gather()                    link's stream     link's stream
//    pack                        link's stream     link's stream; there also the copy to host memory
//    move the data               link's stream     none: the host does it, when the copy to host memory is complete
//    unpack                      link's stream     return stream; there also the copy from host memory
//    hand_over()                 link's stream     return stream
//
// Streams wait for events, and the host does not. gather() orders the link's stream after the events of the inputs. When a pool
// gives device memory, it orders the stream of the new user after the events of the memory's last user (device/buffers.h).
//
// An allreduce of a tensor on GPU 1, while GPU 0 is the home GPU. One copy on GPU 0 serves as input and as output:
//
//    GPU 1: input ── gather() ──► GPU 0: copy ── the operation ──► GPU 0: copy ── hand_over() ──► GPU 1: output
//                                                                         done ── relay() ──► an event of GPU 1
//
// The order in hand_over(): the copies to other GPUs and the copy of the flags come before the event `done`, because after
// `done` callers read the outputs, and the lane reads the flags. Buffers get `done` before they return to the pool. Without an
// event the pool would treat them as free while the GPU still uses them. In a StagedOperation, `done` is in the return stream.
// Nevertheless `done` also comes after the work of the link's stream on these buffers, because the host has seen the end of
// that work (arrived_), or order_inputs() has ordered the return stream after that work.
//
// The fusion buffer, for two float32 tensors of 5 and 40 elements. A piece begins at a multiple of 32 elements, which is 128
// bytes:
//
//    element    0          5          32         72
//               | tensor 0 | not used | tensor 1 | the end: buffer_elements()
//
// The places of the pieces follow from the agreed requests alone. So they are the same on all members, also on a joined rank,
// which has no requests of its own.
#include "engine/execution/gpu/device_operation.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace hvdlite::engine {

namespace cuda = device::cuda;

namespace {

// The alignment of pieces in the fusion buffer, in bytes.
constexpr std::size_t kBoundary = 128;

std::size_t aligned(std::size_t elements, std::size_t element_bytes) {
  const std::size_t grain = kBoundary / element_bytes;
  return (elements + grain - 1) / grain * grain;
}

}  // namespace

DeviceOperation::DeviceOperation(QueuedOperation what, DeviceLink& link)
    : Operation(std::move(what)),
      link_(link),
      watches_finite_(link.context().shared.config.check_finite &&
                      first_request().kind == base::OpKind::kAllreduce &&
                      base::is_float(first_request().dtype)) {}

// Kernels may still run. Their buffers become free when the kernels have ended; if no event can tell when, the buffers are
// never freed. Outputs that the engine has made are treated like these buffers. If an output stayed in its completion, the
// completion would return it to the pool without an event, and the pool would use it again at once.
void DeviceOperation::abandon() {
  for (const Entry& entry : entries()) {
    if (entry.request && entry.completion->output) {
      buffers_.push_back(std::move(entry.completion->output->gpu_block));
    }
  }
  buffers_.push_back(std::move(handed_over_.check.flags));
  const device::EventPtr last = link_.last_event();
  for (device::Buffer& buffer : buffers_) {
    if (last) {
      buffer.free_after(last);
    } else {
      buffer.abandon();
    }
  }
}

// The entries of one submission share an event. The stream is ordered after this event only once.
void DeviceOperation::order_inputs(cuda::Stream stream) const {
  if (gathered_) gathered_->order(stream);
  const device::Event* last = nullptr;
  for (const Entry& entry : entries()) {
    if (!entry.ready || entry.ready.get() == last) continue;
    last = entry.ready.get();
    last->order(stream, gpu());
  }
}

// Orders the stream first, so that the copies from other GPUs read tensors that are ready. The return stream of a
// StagedOperation waits for these copies by the event gathered_.
void DeviceOperation::gather() {
  places_.resize(entries().size());
  if (!has_gpu()) return;
  order_inputs(link_.stream());
  bool foreign = false;
  for (std::size_t i = 0; i < entries().size(); ++i) {
    const Entry& entry = entries()[i];
    PartAddresses& place = places_[i];
    place = {entry.input, entry.output};
    if (!is_foreign(entry)) continue;
    const std::size_t bytes = entry.request->bytes();
    void* copy = device_memory(bytes, link_.stream());
    if (entry.input != nullptr) {
      gpu().copy(copy, entry.input, bytes, link_.stream());
      place.input = copy;
    }
    if (entry.output != nullptr) place.output = copy;
    foreign = true;
  }
  if (foreign) gathered_ = gpu().record(link_.stream());
}

// An operation whose output the engine makes is never fused, so it has one entry. The output lies on the GPU of this rank's
// input. Even an output without bytes gets memory, so that only a joined rank gets null.
void* DeviceOperation::make_output(const Extents& extents, cuda::Stream stream) {
  const Entry& entry = entries()[0];
  if (!entry.request) return nullptr;
  auto output = extents.output(*entry.request);
  output->device = entry.request->device;
  device::Device& device = link_.context().shared.devices.device(output->device);
  const std::size_t bytes = std::max<std::size_t>(output->bytes, 1);
  output->gpu_block = device.memory->get(bytes, stream);
  void* data = output->gpu_block.data();
  entries()[0].completion->output = std::move(output);
  return places_[0].output = is_foreign(entry) ? device_memory(bytes, stream) : data;
}

void* DeviceOperation::device_memory(std::size_t bytes, cuda::Stream stream) {
  return buffers_.emplace_back(link_.home()->memory->get(std::max<std::size_t>(bytes, 1), stream))
      .data();
}

void* DeviceOperation::pinned_memory(std::size_t bytes) {
  return buffers_
      .emplace_back(link_.home()->pinned->get(std::max<std::size_t>(bytes, 1), link_.stream()))
      .data();
}

// Afterwards the lane takes handed_over_ and destroys the operation, while the GPU may still do the operation's work. The pools
// have the buffers by then, with the event after which they are free.
void DeviceOperation::hand_over(cuda::Stream stream) {
  if (!has_gpu()) return;
  for (std::size_t i = 0; i < entries().size(); ++i) {
    const Entry& entry = entries()[i];
    if (!entry.request || !is_foreign(entry) || places_[i].output == nullptr) continue;
    const auto& made = entry.completion->output;
    const std::size_t bytes = made ? made->bytes : entry.request->bytes();
    void* to = made ? made->data() : entry.output;
    if (bytes > 0) gpu().copy(to, places_[i].output, bytes, stream);
  }
  collect_flags(stream);
  const device::EventPtr done = gpu().record(stream);
  for (device::Buffer& buffer : buffers_) buffer.free_after(done);
  buffers_.clear();
  for (const Entry& entry : entries()) {
    if (!entry.request) continue;
    entry.completion->event = is_foreign(entry) ? link_.relay(done, entry.request->device) : done;
    if (entry.completion->output) {
      entry.completion->output->gpu_block.free_after(entry.completion->event);
    }
    // If the input or output lies in memory that the engine has lent to a caller, that memory does not become free before this
    // event.
    device::Device& of = is_foreign(entry)
                             ? link_.context().shared.devices.device(entry.request->device)
                             : *link_.home();
    of.memory->used(entry.input, entry.completion->event);
    of.memory->used(entry.output, entry.completion->event);
  }
  handed_over_.event = done;
  handed_over_.request = fused().parts.front().request;
}

// A piece without a tensor keeps its place: packing fills it with the op's identity, and unpacking skips it.
std::vector<device::Piece> DeviceOperation::pieces(bool outputs, std::size_t element_bytes) const {
  std::vector<device::Piece> pieces;
  pieces.reserve(places_.size());
  std::size_t offset = 0;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const auto count = static_cast<std::size_t>(fused().parts[i].request->elements());
    void* tensor = outputs ? places_[i].output : const_cast<void*>(places_[i].input);
    offset = aligned(offset, element_bytes);
    pieces.push_back({tensor, offset, count});
    offset += count;
  }
  return pieces;
}

std::vector<device::Piece> DeviceOperation::inputs(std::size_t element_bytes) const {
  return pieces(false, element_bytes);
}

std::vector<device::Piece> DeviceOperation::outputs(std::size_t element_bytes) const {
  return pieces(true, element_bytes);
}

// The end of the last piece in pieces().
std::size_t DeviceOperation::buffer_elements(std::size_t element_bytes) const {
  std::size_t end = 0;
  for (const AgreedOperation& part : fused().parts) {
    end = aligned(end, element_bytes) + static_cast<std::size_t>(part.request->elements());
  }
  return end;
}

bool DeviceOperation::lacks_all_inputs() const {
  return std::ranges::all_of(places_,
                             [](const PartAddresses& place) { return place.input == nullptr; });
}

bool DeviceOperation::lacks_all_outputs() const {
  return std::ranges::all_of(places_,
                             [](const PartAddresses& place) { return place.output == nullptr; });
}

// Kernels set a flag, and never clear one. So all flags are cleared first, in the stream in which the kernel runs.
std::int32_t* DeviceOperation::make_flags(cuda::Stream stream) {
  if (!watches_finite_ || !has_gpu()) return nullptr;
  const std::size_t bytes = entries().size() * sizeof(std::int32_t);
  flags_ = static_cast<std::int32_t*>(device_memory(bytes, stream));
  gpu().fill(flags_, 0, bytes, stream);
  return flags_;
}

// After the event the lane reads the flags from page-locked memory, and the tensors' names from the requests. The operation
// itself is destroyed before that.
void DeviceOperation::collect_flags(cuda::Stream stream) {
  if (flags_ == nullptr) return;
  FiniteCheck& check = handed_over_.check;
  const std::size_t bytes = entries().size() * sizeof(std::int32_t);
  check.flags = link_.home()->pinned->get(bytes, stream);
  gpu().copy(check.flags.data(), flags_, bytes, stream);
  for (const AgreedOperation& part : fused().parts) check.requests.push_back(part.request);
}

}  // namespace hvdlite::engine
