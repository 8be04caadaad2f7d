// What a submission does for GPU memory: it checks that addresses are on the GPU that the request names, and records when the
// memory is ready.
// Thread: any for KnownAddresses; one thread for a ReadyEvents, which belongs to one submission. Owns: the events, which
// entries share. Blocks: only where the driver does. Throws: Error(InvalidArgument) for an address or a stream that is not of
// that GPU, Error(Unsupported) for a stream under capture, Error(System) if the driver fails.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "device/devices.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

// "0x7f12", for error texts.
std::string address_text(const void* address);

// Remembers which pages are on a GPU according to the driver, because training steps use the same memory again and again. Asks
// the driver about a page that is not in the table; two pages with the same place in the table replace each other. Does not
// notice when memory is freed and its addresses then belong to another GPU or to the host, so a few wrong pointers pass. The
// check only helps users: a wrong pointer that it finds gives an error text instead of a crash.
class KnownAddresses {
 public:
  // Checks that the page of this address is on the request's GPU. Null passes.
  void check(device::Devices& devices, const Request& request, const void* address);

 private:
  static constexpr std::size_t kPlaces = 4096;
  static constexpr int kPageBits = 12;
  static constexpr int kGpuBits = 16;
  // One word for each place: the page number, and GPU + 1 in the low bits.
  std::array<std::atomic<std::uint64_t>, kPlaces> known_{};
};

// One event for each GPU and stream of a submission.
class ReadyEvents {
 public:
  explicit ReadyEvents(device::Devices& devices) : devices_(devices) {}
  // An event after all work that the stream has now. The reference is valid until the next call.
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
