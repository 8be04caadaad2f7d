// What a submission has to do about GPU memory: make sure that addresses are on the GPU they are said to be on, and note when the
// memory is ready.
// Thread: any for KnownAddresses; a ReadyEvents belongs to one call. Owns: the events, until they are handed out. Blocks: no.
// Throws: Error(InvalidArgument) for an address that is elsewhere, Error(Unsupported) for a stream that is being captured.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "device/devices.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

// The driver is asked once about a page, for a training step uses the same memory again and again. Memory that is freed and comes
// back as another kind at the same address is not noticed; the point is to meet a wrong pointer with a text and not with a crash.
class KnownAddresses {
 public:
  void check(device::Devices& devices, const Request& request, const void* address);

 private:
  static constexpr std::size_t kPlaces = 4096;
  static constexpr int kPageBits = 12;
  static constexpr int kGpuBits = 16;
  std::array<std::atomic<std::uint64_t>, kPlaces> known_{};  // page, and GPU + 1 in the low bits
};

// One event for each GPU and stream of a batch.
class ReadyEvents {
 public:
  explicit ReadyEvents(device::Devices& devices) : devices_(devices) {}
  // After all that the stream has been given so far.
  const device::EventPtr& at(const Request& request, void* stream);

 private:
  struct Recorded {
    std::int32_t gpu;
    void* stream;
    device::EventPtr event;
  };
  device::Devices& devices_;
  std::vector<Recorded> recorded_;
};

}  // namespace hvdlite::engine
