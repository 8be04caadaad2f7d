// What operations on GPU memory have in common: inputs that become ready in streams of their own, tensors on other GPUs than the
// set's, and an end that is an event.
// Thread, Blocks, Throws: as operation.h says. Owns: the buffers it works in, until the event after which they are free.
//
// An operation is finished when its work has been handed to the GPU. Its event then says when the GPU has done it, which nobody
// here waits for.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/execution/extents.h"
#include "engine/execution/gpu/device_link.h"
#include "engine/execution/operation.h"

namespace hvdlite::engine {

// A look at results for values that are not finite, whose flags come with the operation's event.
struct FiniteCheck {
  device::Buffer flags;  // page-locked: an int for each of the requests, 1 if it has such a value
  std::vector<RequestPtr> requests;
};

// What is left of an operation that was handed over, until the GPU has done it.
struct HandedOver {
  device::EventPtr event;
  RequestPtr request;  // the first, which stands for it in messages
  FiniteCheck check;
};

class DeviceOperation : public Operation {
 public:
  DeviceOperation(FusedOp fused, std::vector<Entry> entries, DeviceLink& link)
      : Operation(std::move(fused), std::move(entries)), link_(link) {}

  void abandon() override;
  virtual bool is_nccl() const = 0;
  // Has it still to begin what members begin in one order?
  virtual bool awaits_turn() const { return false; }
  // Once it has finished; without an event if the GPU had nothing to do.
  HandedOver& handed_over() { return handed_over_; }

 protected:
  // Where a part's tensors are for the set's GPU: they themselves, or copies of those on another GPU. Null: there is none.
  struct PartAddresses {
    const void* input = nullptr;
    void* output = nullptr;
  };

  DeviceLink& link() const { return link_; }
  bool has_gpu() const { return link_.home() != nullptr; }
  const device::Gpu& gpu() const { return *link_.home()->gpu; }
  device::FusionKernels& kernels() { return link_.home()->kernels(); }
  const PartAddresses& place(std::size_t part) const { return places_[part]; }

  // The first step: the link's stream comes after what the inputs wait for, and they are on its GPU.
  void gather();
  // Makes this rank's result of an operation whose output is the engine's. Where to put it: null if this rank has joined.
  void* make_output(const Extents& extents, device::cuda::Stream stream);
  // Memory of the set's GPU, or of the host for copies from and to it, until the operation's event.
  void* device_memory(std::size_t bytes, device::cuda::Stream stream);
  void* pinned_memory(std::size_t bytes);
  // The last step: after all that is in `stream` so far the results are there.
  void hand_over(device::cuda::Stream stream);
  // Another stream that is to use what gather has prepared.
  void order_inputs(device::cuda::Stream stream) const;

  // The fusion buffer: the parts one after the other, each on a boundary at which kernels are fast. What is between them is
  // reduced with the rest and means nothing.
  std::vector<device::Piece> inputs(std::size_t element_bytes) const;
  std::vector<device::Piece> outputs(std::size_t element_bytes) const;
  std::size_t buffer_elements(std::size_t element_bytes) const;
  bool lacks_all_inputs() const;
  bool lacks_all_outputs() const;

  // Flags for the outputs, of which one is set when a value is not finite; null if nobody asked for it. Then collected.
  std::int32_t* make_flags(device::cuda::Stream stream);
  void collect_flags(device::cuda::Stream stream);
  void watch_finite(bool wanted) { watches_finite_ = wanted; }
  bool watches_finite() const { return watches_finite_; }

 private:
  bool is_foreign(const Entry& entry) const {
    return entry.request && entry.request->device != gpu().ordinal();
  }
  std::vector<device::Piece> pieces(bool outputs, std::size_t element_bytes) const;

  DeviceLink& link_;
  std::vector<PartAddresses> places_;
  std::vector<device::Buffer> buffers_;
  device::EventPtr gathered_;  // after the copies of tensors on other GPUs; null: there are none
  std::int32_t* flags_ = nullptr;
  bool watches_finite_ = false;
  HandedOver handed_over_;
};

}  // namespace hvdlite::engine
