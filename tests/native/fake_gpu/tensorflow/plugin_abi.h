// What TensorFlow asks of a device that is a plug-in (its StreamExecutor C API, version 0.0.1), declared here so that none of its
// headers is needed to build. Plain declarations; members that nothing here sets have the type void*.
#pragma once

#include <cstddef>
#include <cstdint>

struct TF_Status;

namespace fake::tensorflow {

struct Stream;
struct Event;
struct Timer;
using Callback = void (*)(void* argument, TF_Status* status);

struct Memory {
  std::size_t struct_size;
  void* ext;
  void* address;
  std::uint64_t bytes;
  std::uint64_t payload;
};

struct Device {
  std::size_t struct_size;
  void* ext;
  std::int32_t ordinal;
  void* handle;
  const char* hardware_name;
  const char* vendor;
  const char* pci_bus;
};

struct CreateDevice {
  std::size_t struct_size;
  void* ext;
  std::int32_t ordinal;
  Device* device;
};

struct DeviceFunctions {
  std::size_t struct_size;
  void* ext;
  void* optional[3];
};

struct CreateDeviceFunctions {
  std::size_t struct_size;
  void* ext;
  DeviceFunctions* functions;
};

struct TimerFunctions {
  std::size_t struct_size;
  void* ext;
  std::uint64_t (*nanoseconds)(Timer*);
};

// SE_EventStatus
enum EventState : int { kError = 1, kPending = 2, kComplete = 3 };

struct StreamExecutor {
  std::size_t struct_size;
  void* ext;
  void (*allocate)(const Device*, std::uint64_t bytes, std::int64_t space, Memory*);
  void (*deallocate)(const Device*, Memory*);
  void* (*host_memory_allocate)(const Device*, std::uint64_t bytes);
  void (*host_memory_deallocate)(const Device*, void*);
  void* unified_memory[2];
  unsigned char (*get_allocator_stats)(const Device*, void*);
  unsigned char (*device_memory_usage)(const Device*, std::int64_t* free, std::int64_t* total);
  void (*create_stream)(const Device*, Stream**, TF_Status*);
  void (*destroy_stream)(const Device*, Stream*);
  void (*create_stream_dependency)(const Device*, Stream* dependent, Stream* other, TF_Status*);
  void (*get_stream_status)(const Device*, Stream*, TF_Status*);
  void (*create_event)(const Device*, Event**, TF_Status*);
  void (*destroy_event)(const Device*, Event*);
  EventState (*get_event_status)(const Device*, Event*);
  void (*record_event)(const Device*, Stream*, Event*, TF_Status*);
  void (*wait_for_event)(const Device*, Stream*, Event*, TF_Status*);
  void (*create_timer)(const Device*, Timer**, TF_Status*);
  void (*destroy_timer)(const Device*, Timer*);
  void (*start_timer)(const Device*, Stream*, Timer*, TF_Status*);
  void (*stop_timer)(const Device*, Stream*, Timer*, TF_Status*);
  void (*memcpy_dtoh)(const Device*, Stream*, void*, const Memory*, std::uint64_t, TF_Status*);
  void (*memcpy_htod)(const Device*, Stream*, Memory*, const void*, std::uint64_t, TF_Status*);
  void (*memcpy_dtod)(const Device*, Stream*, Memory*, const Memory*, std::uint64_t, TF_Status*);
  void (*sync_memcpy_dtoh)(const Device*, void*, const Memory*, std::uint64_t, TF_Status*);
  void (*sync_memcpy_htod)(const Device*, Memory*, const void*, std::uint64_t, TF_Status*);
  void (*sync_memcpy_dtod)(const Device*, Memory*, const Memory*, std::uint64_t, TF_Status*);
  void (*block_host_for_event)(const Device*, Event*, TF_Status*);
  void (*block_host_until_done)(const Device*, Stream*, TF_Status*);
  void (*synchronize_all_activity)(const Device*, TF_Status*);
  void (*mem_zero)(const Device*, Stream*, Memory*, std::uint64_t bytes, TF_Status*);
  void (*memset)(const Device*, Stream*, Memory*, std::uint8_t, std::uint64_t bytes, TF_Status*);
  void (*memset32)(const Device*, Stream*, Memory*, std::uint32_t, std::uint64_t bytes, TF_Status*);
  unsigned char (*host_callback)(const Device*, Stream*, Callback, void* argument);
};

struct CreateStreamExecutor {
  std::size_t struct_size;
  void* ext;
  StreamExecutor* executor;
};

struct Platform {
  std::size_t struct_size;
  void* ext;
  const char* name;
  const char* type;
  unsigned char supports_unified_memory;
  unsigned char use_bfc_allocator;
  unsigned char force_memory_growth;
};

struct PlatformFunctions {
  std::size_t struct_size;
  void* ext;
  void (*get_device_count)(const Platform*, int*, TF_Status*);
  void (*create_device)(const Platform*, CreateDevice*, TF_Status*);
  void (*destroy_device)(const Platform*, Device*);
  void (*create_device_fns)(const Platform*, CreateDeviceFunctions*, TF_Status*);
  void (*destroy_device_fns)(const Platform*, DeviceFunctions*);
  void (*create_stream_executor)(const Platform*, CreateStreamExecutor*, TF_Status*);
  void (*destroy_stream_executor)(const Platform*, StreamExecutor*);
  void (*create_timer_fns)(const Platform*, TimerFunctions*, TF_Status*);
  void (*destroy_timer_fns)(const Platform*, TimerFunctions*);
};

struct Registration {
  std::size_t struct_size;
  void* ext;
  std::int32_t major, minor, patch;
  Platform* platform;
  PlatformFunctions* functions;
  void (*destroy_platform)(Platform*);
  void (*destroy_platform_fns)(PlatformFunctions*);
};

}  // namespace fake::tensorflow
