// A device of the type GPU for TensorFlow, also for builds without CUDA: a plug-in whose memory, streams and events are the fake
// driver's. So TensorFlow's own executor, allocator and copies run on what tests hvdlite's side of it.
// Thread: any. Owns: nothing but what TensorFlow has it make. Blocks: as the driver does. Throws: nothing.
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "bindings/tensorflow/tf_api.h"
#include "control.h"
#include "tensorflow/plugin.h"

namespace fake::tensorflow {

struct Event {
  cuda::Event handle = nullptr;
};
struct Timer {};

namespace {

cuda::Address address_of(const void* pointer) { return reinterpret_cast<cuda::Address>(pointer); }

// To the program: TensorFlow has no way to be told by some of these functions.
void require(cuda::Result result, const char* what) {
  if (result == cuda::kSuccess) return;
  std::fprintf(stderr, "fake GPU of TensorFlow: %s returned %d\n", what, result);
  std::abort();
}

void fail(TF_Status* status, const char* text) {
  hvdlite::tensorflow::api().SetStatus(status, hvdlite::kInternal, text);
}

void check(cuda::Result result, TF_Status* status, const char* what) {
  if (result != cuda::kSuccess) fail(status, what);
}

// --- memory -----------------------------------------------------------------------------------------------------------

void allocate(const Device* device, std::uint64_t bytes, std::int64_t, Memory* memory) {
  const OnGpu on(device->ordinal);
  cuda::Address address = 0;
  *memory = {
      .struct_size = sizeof(Memory), .ext = nullptr, .address = nullptr, .bytes = 0, .payload = 0};
  if (cuMemAlloc(&address, bytes) != cuda::kSuccess) return;
  memory->address = reinterpret_cast<void*>(address);
  memory->bytes = bytes;
}

void deallocate(const Device* device, Memory* memory) {
  const OnGpu on(device->ordinal);
  if (memory->address != nullptr) cuMemFree(address_of(memory->address));
  memory->address = nullptr;
}

void* host_memory_allocate(const Device* device, std::uint64_t bytes) {
  const OnGpu on(device->ordinal);
  void* memory = nullptr;
  return cuMemHostAlloc(&memory, bytes, cuda::kHostAllocPortable) == cuda::kSuccess ? memory
                                                                                    : nullptr;
}

void host_memory_deallocate(const Device* device, void* memory) {
  const OnGpu on(device->ordinal);
  cuMemFreeHost(memory);
}

unsigned char get_allocator_stats(const Device*, void*) { return 0; }

unsigned char device_memory_usage(const Device*, std::int64_t* free, std::int64_t* total) {
  *free = *total = std::int64_t{1} << 30;
  return 1;
}

// --- streams and events -----------------------------------------------------------------------------------------------

void create_stream(const Device* device, Stream** stream, TF_Status* status) {
  const OnGpu on(device->ordinal);
  cuda::Stream made = nullptr;
  check(cuStreamCreateWithPriority(&made, cuda::kStreamNonBlocking, 0), status, "no stream");
  *stream = new Stream(device->ordinal, made);
}

void destroy_stream(const Device* device, Stream* stream) {
  const OnGpu on(device->ordinal);
  cuStreamDestroy(stream->handle);
  delete stream;
}

void create_event(const Device* device, Event** event, TF_Status* status) {
  const OnGpu on(device->ordinal);
  *event = new Event;
  check(cuEventCreate(&(*event)->handle, cuda::kEventDisableTiming), status, "no event");
}

void destroy_event(const Device* device, Event* event) {
  const OnGpu on(device->ordinal);
  cuEventDestroy(event->handle);
  delete event;
}

EventState get_event_status(const Device* device, Event* event) {
  const OnGpu on(device->ordinal);
  const cuda::Result result = cuEventQuery(event->handle);
  return result == cuda::kSuccess ? kComplete : result == cuda::kNotReady ? kPending : kError;
}

void record_event(const Device* device, Stream* stream, Event* event, TF_Status* status) {
  const OnGpu on(device->ordinal);
  check(cuEventRecord(event->handle, stream->handle), status, "cuEventRecord");
}

void wait_for_event(const Device* device, Stream* stream, Event* event, TF_Status* status) {
  const OnGpu on(device->ordinal);
  check(cuStreamWaitEvent(stream->handle, event->handle, 0), status, "cuStreamWaitEvent");
}

void create_stream_dependency(const Device* device, Stream* dependent, Stream* other,
                              TF_Status* status) {
  Event* event = nullptr;
  create_event(device, &event, status);
  record_event(device, other, event, status);
  wait_for_event(device, dependent, event, status);
  destroy_event(device, event);
}

void get_stream_status(const Device*, Stream*, TF_Status*) {}

void block_host_for_event(const Device* device, Event* event, TF_Status* status) {
  const OnGpu on(device->ordinal);
  check(cuEventSynchronize(event->handle), status, "cuEventSynchronize");
}

void block_host_until_done(const Device* device, Stream* stream, TF_Status* status) {
  const OnGpu on(device->ordinal);
  check(cuStreamSynchronize(stream->handle), status, "cuStreamSynchronize");
}

void synchronize_all_activity(const Device*, TF_Status*) {}

// TensorFlow asks for it only where it has no events to look at.
unsigned char host_callback(const Device* device, Stream* stream, Callback callback,
                            void* argument) {
  block_host_until_done(device, stream, nullptr);
  TF_Status* status = hvdlite::tensorflow::api().NewStatus();
  callback(argument, status);
  hvdlite::tensorflow::api().DeleteStatus(status);
  return 1;
}

void create_timer(const Device*, Timer** timer, TF_Status*) { *timer = new Timer; }
void destroy_timer(const Device*, Timer* timer) { delete timer; }
void use_timer(const Device*, Stream*, Timer*, TF_Status*) {}
std::uint64_t nanoseconds(Timer*) { return 0; }

// --- copies -----------------------------------------------------------------------------------------------------------

void copy(const Device* device, cuda::Stream stream, const void* to, const void* from,
          std::uint64_t bytes, TF_Status* status) {
  const OnGpu on(device->ordinal);
  check(cuMemcpyAsync(address_of(to), address_of(from), bytes, stream), status, "cuMemcpyAsync");
}

void copy_at_once(const Device* device, const void* to, const void* from, std::uint64_t bytes,
                  TF_Status* status) {
  copy(device, nullptr, to, from, bytes, status);
  const OnGpu on(device->ordinal);
  check(cuStreamSynchronize(nullptr), status, "cuStreamSynchronize");
}

void fill(const Device* device, Stream* stream, Memory* memory, std::uint8_t value,
          std::uint64_t bytes, TF_Status* status) {
  const OnGpu on(device->ordinal);
  check(cuMemsetD8Async(address_of(memory->address), value, bytes, stream->handle), status,
        "cuMemsetD8Async");
}

void fill_words(const Device* device, Stream* stream, Memory* memory, std::uint32_t value,
                std::uint64_t bytes, TF_Status* status) {
  if (value != 0) return fail(status, "only zeros can be filled in");
  fill(device, stream, memory, 0, bytes, status);
}

const StreamExecutor kExecutor = {
    .struct_size = sizeof(StreamExecutor),
    .ext = nullptr,
    .allocate = allocate,
    .deallocate = deallocate,
    .host_memory_allocate = host_memory_allocate,
    .host_memory_deallocate = host_memory_deallocate,
    .unified_memory = {},
    .get_allocator_stats = get_allocator_stats,
    .device_memory_usage = device_memory_usage,
    .create_stream = create_stream,
    .destroy_stream = destroy_stream,
    .create_stream_dependency = create_stream_dependency,
    .get_stream_status = get_stream_status,
    .create_event = create_event,
    .destroy_event = destroy_event,
    .get_event_status = get_event_status,
    .record_event = record_event,
    .wait_for_event = wait_for_event,
    .create_timer = create_timer,
    .destroy_timer = destroy_timer,
    .start_timer = use_timer,
    .stop_timer = use_timer,
    .memcpy_dtoh =
        [](const Device* device, Stream* stream, void* to, const Memory* from, std::uint64_t bytes,
           TF_Status* status) { copy(device, stream->handle, to, from->address, bytes, status); },
    .memcpy_htod =
        [](const Device* device, Stream* stream, Memory* to, const void* from, std::uint64_t bytes,
           TF_Status* status) { copy(device, stream->handle, to->address, from, bytes, status); },
    .memcpy_dtod =
        [](const Device* device, Stream* stream, Memory* to, const Memory* from,
           std::uint64_t bytes, TF_Status* status) {
          copy(device, stream->handle, to->address, from->address, bytes, status);
        },
    .sync_memcpy_dtoh =
        [](const Device* device, void* to, const Memory* from, std::uint64_t bytes,
           TF_Status* status) { copy_at_once(device, to, from->address, bytes, status); },
    .sync_memcpy_htod =
        [](const Device* device, Memory* to, const void* from, std::uint64_t bytes,
           TF_Status* status) { copy_at_once(device, to->address, from, bytes, status); },
    .sync_memcpy_dtod =
        [](const Device* device, Memory* to, const Memory* from, std::uint64_t bytes,
           TF_Status* status) { copy_at_once(device, to->address, from->address, bytes, status); },
    .block_host_for_event = block_host_for_event,
    .block_host_until_done = block_host_until_done,
    .synchronize_all_activity = synchronize_all_activity,
    .mem_zero = [](const Device* device, Stream* stream, Memory* memory, std::uint64_t bytes,
                   TF_Status* status) { fill(device, stream, memory, 0, bytes, status); },
    .memset = fill,
    .memset32 = fill_words,
    .host_callback = host_callback,
};

// --- the platform -----------------------------------------------------------------------------------------------------

void get_device_count(const Platform*, int* count, TF_Status* status) {
  check(cuDeviceGetCount(count), status, "cuDeviceGetCount");
}

void create_device(const Platform*, CreateDevice* parameters, TF_Status*) {
  *parameters->device = {.struct_size = sizeof(Device),
                         .ext = nullptr,
                         .ordinal = parameters->ordinal,
                         .handle = nullptr,
                         .hardware_name = "fake GPU",
                         .vendor = "hvdlite",
                         .pci_bus = "0000:00:00.0"};
}

const PlatformFunctions kPlatform = {
    .struct_size = sizeof(PlatformFunctions),
    .ext = nullptr,
    .get_device_count = get_device_count,
    .create_device = create_device,
    .destroy_device = [](const Platform*, Device*) {},
    .create_device_fns =
        [](const Platform*, CreateDeviceFunctions* parameters, TF_Status*) {
          *parameters->functions = {sizeof(DeviceFunctions), nullptr, {}};
        },
    .destroy_device_fns = [](const Platform*, DeviceFunctions*) {},
    .create_stream_executor = [](const Platform*, CreateStreamExecutor* parameters,
                                 TF_Status*) { *parameters->executor = kExecutor; },
    .destroy_stream_executor = [](const Platform*, StreamExecutor*) {},
    .create_timer_fns =
        [](const Platform*, TimerFunctions* timers, TF_Status*) {
          *timers = {sizeof(TimerFunctions), nullptr, nanoseconds};
        },
    .destroy_timer_fns = [](const Platform*, TimerFunctions*) {},
};

}  // namespace

OnGpu::OnGpu(int gpu) {
  // Retained for good, as a program that has used a GPU does.
  static cuda::Context contexts[64] = {};
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (contexts[gpu] == nullptr) {
    require(cuDevicePrimaryCtxRetain(&contexts[gpu], gpu), "cuDevicePrimaryCtxRetain");
  }
  require(cuCtxPushCurrent(contexts[gpu]), "cuCtxPushCurrent");
}

OnGpu::~OnGpu() {
  cuda::Context popped = nullptr;
  cuCtxPopCurrent(&popped);
}

}  // namespace fake::tensorflow

FAKE_EXPORT void SE_InitPlugin(fake::tensorflow::Registration* registration, TF_Status* status) {
  if (fake_driver::cuInit(0) != 0) {
    return hvdlite::tensorflow::api().SetStatus(status, hvdlite::kInternal, "cuInit");
  }
  registration->struct_size = sizeof(*registration);
  *registration->platform = {.struct_size = sizeof(fake::tensorflow::Platform),
                             .ext = nullptr,
                             .name = "FAKE",
                             .type = "GPU",
                             .supports_unified_memory = 0,
                             .use_bfc_allocator = 1,
                             .force_memory_growth = 1};
  *registration->functions = fake::tensorflow::kPlatform;
  registration->destroy_platform = [](fake::tensorflow::Platform*) {};
  registration->destroy_platform_fns = [](fake::tensorflow::PlatformFunctions*) {};
}
