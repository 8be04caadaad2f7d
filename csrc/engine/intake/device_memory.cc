// KnownAddresses is a table with one place for each page number modulo kPlaces. A place holds one word: the number of a page
// and its GPU. A check reads the word in the place of its page:
//
//    same page and GPU       passes; the driver is not asked
//    any other word, or 0    asks the driver; if the address is on the request's GPU, writes the new word, otherwise throws
//
// A word is read and written as one atomic number, so threads need no lock. If two threads write to one place, the later word
// stays, and the next check of the other page asks the driver again.
#include "engine/intake/device_memory.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace hvdlite::engine {

std::string address_text(const void* address) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%" PRIxPTR, reinterpret_cast<std::uintptr_t>(address));
  return text;
}

void KnownAddresses::check(device::Devices& devices, const Request& request, const void* address) {
  if (address == nullptr) return;
  const std::uint64_t page = reinterpret_cast<std::uintptr_t>(address) >> kPageBits;
  // GPU + 1, so that no word is 0: 0 is the word of a place that was never written.
  const std::uint64_t word =
      (page << kGpuBits) | (static_cast<std::uint64_t>(request.device + 1) & 0xffff);
  std::atomic<std::uint64_t>& known = known_[page % kPlaces];
  if (known.load(std::memory_order_relaxed) == word) return;
  int gpu = -1;
  naming(request, [&] { gpu = device::gpu_of_address(devices.driver(), address); });
  if (gpu == request.device) {
    known.store(word, std::memory_order_relaxed);
    return;
  }
  throw base::Error(
      base::ErrorCode::kInvalidArgument,
      describe(request) + ": its memory at " + address_text(address) + " is not on GPU " +
          std::to_string(request.device) + " but " +
          (gpu < 0 ? std::string("in host memory") : "on GPU " + std::to_string(gpu)) +
          "; give the device that the tensor is on");
}

// If tensors of a submission have the same GPU and the same stream, they share one event, because they are ready after the work
// that this stream has now.
const device::EventPtr& ReadyEvents::at(const Request& request, void* stream) {
  const auto found = std::ranges::find_if(recorded_, [&](const Recorded& one) {
    return one.gpu == request.device && one.stream == stream;
  });
  if (found != recorded_.end()) return found->event;
  naming(request, [&] {
    const device::Gpu& gpu = *devices_.device(request.device).gpu;
    recorded_.push_back(
        {request.device, stream, gpu.record(static_cast<device::cuda::Stream>(stream))});
  });
  return recorded_.back().event;
}

}  // namespace hvdlite::engine
