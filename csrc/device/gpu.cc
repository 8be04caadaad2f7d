// How hvdlite shares a GPU with a framework: it uses the primary context, which is the context of the CUDA runtime, and so of
// torch, TensorFlow, JAX and CuPy. Their streams, events and pointers are valid there.
//
// A thread may have another context current, or none. So each public function that needs the context makes a Current, which
// pushes the context in its constructor and pops it in its destructor. Currents may be nested: a caller that calls CUDA or NCCL
// itself holds a Current, and the functions of this file push the same context once more.
//
// The life of an event:
//
//    record() ──► new_event(): taken from free_events_, or made by the driver ──► cuEventRecord ──► EventPtr
//    the last EventPtr ends ──► ~Event ──► give_back() ──► free_events_ ──► the next record(), or ~Gpu, which destroys it
//
// The mutex of the Gpu protects free_events_ and nothing else. All other members are constant after the constructor.
//
// An event may return to free_events_ before the GPU has reached it, and may be recorded again at once. An example:
//
//    host        E = record(stream 1), E->order(stream 2), E ends, F = record(stream 3) takes E's event of the driver
//    stream 2    waits for the point of stream 1 at which E was recorded
//
// That is right, because cuStreamWaitEvent uses the event's last record before the call. Later records do not change for what
// the stream waits (CUDA Driver API, cuEventRecord). finished() and synchronize() ask for the event's last record, too. Their
// caller holds an EventPtr, so the event is not in free_events_ and is not recorded again.
#include "device/gpu.h"

#include <unistd.h>

#include <cstdint>

namespace hvdlite::device {

using base::Error;
using base::ErrorCode;

namespace {

cuda::Address address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

Current::Current(const Gpu& gpu) : gpu_(gpu), capture_mode_(cuda::kCaptureModeRelaxed) {
  const Driver& driver = gpu.driver();
  driver.check(driver.call().CtxPushCurrent(gpu.context_), "cuCtxPushCurrent");
  // Exchanges the two modes: capture_mode_ has the thread's former mode afterwards, which the destructor sets again. In the
  // default mode a call such as cuMemAlloc would fail while any thread captures a graph in that mode, and would make the
  // capture invalid.
  const cuda::Result result = driver.call().ThreadExchangeStreamCaptureMode(&capture_mode_);
  if (result == cuda::kSuccess) return;
  cuda::Context popped = nullptr;
  driver.call().CtxPopCurrent(&popped);
  driver.check(result, "cuThreadExchangeStreamCaptureMode");
}

Current::~Current() {
  // Errors are ignored, because a destructor must not throw. Later calls fail as well if the driver has ended or the GPU has
  // failed.
  gpu_.call().ThreadExchangeStreamCaptureMode(&capture_mode_);
  cuda::Context popped = nullptr;
  gpu_.call().CtxPopCurrent(&popped);
}

// A job records several events in each step. The pool saves a cuEventCreate and a cuEventDestroy for most of them.
Event::~Event() { gpu_->give_back(event_); }

void Event::order(cuda::Stream stream, const Gpu& stream_gpu) const {
  const Current current(stream_gpu);
  gpu_->driver().check(gpu_->call().StreamWaitEvent(stream, event_, 0), "cuStreamWaitEvent");
}

bool Event::finished() const {
  const Current current(*gpu_);
  return gpu_->driver().is_done(gpu_->call().EventQuery(event_), "cuEventQuery");
}

void Event::synchronize() const {
  const Current current(*gpu_);
  gpu_->driver().check(gpu_->call().EventSynchronize(event_), "cuEventSynchronize");
}

// The highest priority: if blocks of several kernels are ready, the GPU starts those of hvdlite before those of streams with a
// lower priority. Other ranks wait for hvdlite's kernels.
OwnStream::OwnStream(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)) {
  const Current current(*gpu_);
  int least = 0;
  int greatest = 0;  // a smaller number means a higher priority
  gpu_->driver().check(gpu_->call().CtxGetStreamPriorityRange(&least, &greatest),
                       "cuCtxGetStreamPriorityRange");
  gpu_->driver().check(
      gpu_->call().StreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, greatest),
      "cuStreamCreateWithPriority");
}

OwnStream::~OwnStream() {
  gpu_->clean_up([this](const cuda::Functions& call) { call.StreamDestroy(stream_); });
}

Gpu::Gpu(DriverPtr driver, int ordinal)
    : driver_(std::move(driver)), ordinal_(ordinal), process_(getpid()) {
  if (ordinal < 0 || ordinal >= driver_->devices()) {
    throw Error(ErrorCode::kInvalidArgument,
                "there is no GPU " + std::to_string(ordinal) + ": this process sees " +
                    std::to_string(driver_->devices()) +
                    ", numbered from 0 (CUDA_VISIBLE_DEVICES chooses them)");
  }
  driver_->check(call().DeviceGet(&device_, ordinal), "cuDeviceGet");
  char name[128] = {};
  driver_->check(call().DeviceGetName(name, sizeof(name), device_), "cuDeviceGetName");
  name_ = name;
  driver_->check(call().DeviceGetUuid(&uuid_, device_), "cuDeviceGetUuid");
  const auto attribute = [this](int which) {
    int value = 0;
    driver_->check(call().DeviceGetAttribute(&value, which, device_), "cuDeviceGetAttribute");
    return value;
  };
  capability_ = attribute(cuda::kAttributeComputeCapabilityMajor) * 10 +
                attribute(cuda::kAttributeComputeCapabilityMinor);
  multiprocessors_ = attribute(cuda::kAttributeMultiprocessorCount);
  // The last step: if an earlier one throws, there is nothing to release, and the destructor does not run.
  driver_->check(call().DevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

// Every event, stream and buffer keeps its GPU alive. So all events that were given out are in free_events_ now, except those
// that give_back() could not keep. The context is released last, because the events belong to it.
Gpu::~Gpu() {
  clean_up([this](const cuda::Functions& call) {
    for (cuda::Event event : free_events_) call.EventDestroy(event);
  });
  if (in_own_process()) call().DevicePrimaryCtxRelease(device_);
}

bool Gpu::in_own_process() const noexcept { return getpid() == process_; }

// An event that is recorded in a stream under capture becomes a part of the graph. The driver refuses to query such an event
// (CUDA_ERROR_CAPTURED_EVENT), so hvdlite would never know that the work is done.
void Gpu::refuse_capture(cuda::Stream stream) const {
  int status = cuda::kCaptureStatusNone;
  const cuda::Result result = call().StreamIsCapturing(stream, &status);
  // The driver gives this error for the legacy default stream while a stream that is ordered with it is under capture.
  const bool implicit = result == cuda::kCaptureImplicit;
  if (!implicit) driver_->check(result, "cuStreamIsCapturing");
  if (!implicit && status == cuda::kCaptureStatusNone) return;
  throw Error(ErrorCode::kUnsupported,
              std::string(implicit ? "a stream" : "the current stream") + " of GPU " +
                  std::to_string(ordinal_) +
                  " is being captured into a CUDA graph, which hvdlite's operations cannot be part "
                  "of; do them before or after the capture");
}

// kEventDisableTiming: nothing reads the event's time. kEventBlockingSync: a thread in synchronize() (such as the one of
// DeviceWatcher) sleeps instead of spinning.
EventPtr Gpu::new_event() const {
  cuda::Event event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      event = free_events_.back();
      free_events_.pop_back();
    }
  }
  if (event == nullptr) {
    driver_->check(call().EventCreate(&event, cuda::kEventDisableTiming | cuda::kEventBlockingSync),
                   "cuEventCreate");
  }
  return EventPtr(new Event(shared_from_this(), event));
}

void Gpu::give_back(cuda::Event event) const noexcept {
  if (!in_own_process()) return;  // in a forked child the lock may be held for ever
  try {
    const std::lock_guard lock(mutex_);
    free_events_.push_back(event);
  } catch (const std::bad_alloc&) {
    // There was no memory for the list, so this event exists until the context ends.
  }
}

// If the record fails, the event returns to the pool, because a later record makes it valid.
EventPtr Gpu::record(cuda::Stream stream) const {
  const Current current(*this);
  refuse_capture(stream);
  EventPtr event = new_event();
  const cuda::Result result = call().EventRecord(event->event_, stream);
  // Usually the caller's stream is the cause, so the error says what a stream must be.
  if (result == cuda::kInvalidHandle || result == cuda::kInvalidContext) {
    throw Error(ErrorCode::kInvalidArgument,
                driver_->describe(result, "cuEventRecord") + "; the stream must be one of GPU " +
                    std::to_string(ordinal_) +
                    ", made in its primary context as the CUDA runtime's are");
  }
  driver_->check(result, "cuEventRecord");
  return event;
}

void Gpu::copy(void* to, const void* from, std::size_t bytes, cuda::Stream stream) const {
  if (bytes == 0) return;
  const Current current(*this);
  driver_->check(call().MemcpyAsync(address_of(to), address_of(from), bytes, stream),
                 "cuMemcpyAsync");
}

void Gpu::fill(void* to, unsigned char value, std::size_t bytes, cuda::Stream stream) const {
  if (bytes == 0) return;
  const Current current(*this);
  driver_->check(call().MemsetD8Async(address_of(to), value, bytes, stream), "cuMemsetD8Async");
}

bool Gpu::is_idle(cuda::Stream stream) const {
  const Current current(*this);
  return driver_->is_done(call().StreamQuery(stream), "cuStreamQuery");
}

// An address that CUDA does not know (kInvalidValue) is host memory that was allocated without CUDA.
int gpu_of_address(const Driver& driver, const void* address) {
  // Page-locked host memory has an ordinal as well, so check the type.
  unsigned type = 0;
  const cuda::Result result = driver.call().PointerGetAttribute(
      &type, cuda::kPointerAttributeMemoryType, address_of(address));
  if (result == cuda::kInvalidValue) return -1;
  driver.check(result, "cuPointerGetAttribute");
  if (type == cuda::kMemoryTypeHost) return -1;
  int ordinal = -1;
  driver.check(driver.call().PointerGetAttribute(&ordinal, cuda::kPointerAttributeDeviceOrdinal,
                                                 address_of(address)),
               "cuPointerGetAttribute");
  return ordinal;
}

}  // namespace hvdlite::device
