// The base class of operations on GPU memory. It handles the events at which inputs are ready, tensors on other GPUs than the
// set's home GPU, and the event at the end of the operation's work.
// Thread, Throws: as operation.h says. Owns: its buffers, until the event after which they are free. Blocks: as operation.h
// says, and while the home GPU's kernels are loaded, if no submission to that GPU has loaded them.
//
// An operation is finished when its last work is enqueued on the GPU (it is then handed over). Its event says when the GPU has
// done the work. Until then the lane keeps the event, and the next operations start without waiting for it.
#pragma once

#include <vector>

#include "engine/execution/extents.h"
#include "engine/execution/gpu/device_link.h"
#include "engine/execution/operation.h"

namespace hvdlite::engine {

// A check of results for values that are not finite. The flags are valid after the operation's event.
struct FiniteCheck {
  device::Buffer flags;  // page-locked: an int for each request, 1 if its result has such a value
  std::vector<RequestPtr> requests;
};

// What the lane keeps of an operation that is handed over, until the GPU has done the work.
struct HandedOver {
  device::EventPtr event;
  RequestPtr request;  // the first request; errors name the operation by it
  FiniteCheck check;
};

class DeviceOperation : public Operation {
 public:
  DeviceOperation(QueuedOperation what, DeviceLink& link);

  void abandon() override;
  virtual bool is_nccl() const = 0;
  // True until a staged operation begins to move data; always false for an NCCL operation. Staged operations use shared host
  // memory one after the other, so all members must begin to move the operations' data in the lane's order. So of the
  // operations for which awaits_turn() is true, the lane advances only the oldest.
  virtual bool awaits_turn() const { return false; }
  // Valid after the operation has finished. Its event is null if no rank had a value, or if this rank has no GPU.
  HandedOver& handed_over() { return handed_over_; }

 protected:
  // The input and output of one part of the FusedOp, as addresses on the home GPU: of the tensors themselves, or of copies if
  // the tensors lie on another GPU. Null: this rank has no tensor, or no GPU.
  struct PartAddresses {
    const void* input = nullptr;
    void* output = nullptr;
  };

  DeviceLink& link() const { return link_; }
  const ProcessSet& set() const { return link_.set(); }
  bool has_gpu() const { return link_.home() != nullptr; }
  const device::Gpu& gpu() const { return *link_.home()->gpu; }
  device::FusionKernels& kernels() { return link_.home()->kernels(); }
  const PartAddresses& place(std::size_t part) const { return places_[part]; }

  // Call gather() first. It orders the link's stream after the inputs' events, and copies inputs from other GPUs to the home
  // GPU. After gather(), place() is valid.
  void gather();
  // Allocates this rank's output of an operation whose output the engine makes. Returns the address on the home GPU to which
  // the operation must write. This is the output itself if it lies on the home GPU; otherwise it is other memory, which
  // hand_over() copies to the output. Null if this rank has joined.
  void* make_output(const Extents& extents, device::cuda::Stream stream);
  // Memory of the home GPU for work in `stream`, and page-locked memory of the host. Both kinds of memory become free after the
  // operation's event.
  void* device_memory(std::size_t bytes, device::cuda::Stream stream);
  void* pinned_memory(std::size_t bytes);
  // Call hand_over() last, when `stream` has all the work that makes the results. Copies outputs to other GPUs, and records the
  // operation's event.
  void hand_over(device::cuda::Stream stream);
  // Orders a stream after the inputs' events and gather()'s copies.
  void order_inputs(device::cuda::Stream stream) const;

  // The input or output tensors as pieces of the fusion buffer. The pieces lie one after the other, each on a boundary at which
  // kernels are fast. The bytes between the pieces are reduced as well, and nobody reads their results.
  std::vector<device::Piece> inputs(std::size_t element_bytes) const;
  std::vector<device::Piece> outputs(std::size_t element_bytes) const;
  std::size_t buffer_elements(std::size_t element_bytes) const;
  bool lacks_all_inputs() const;
  bool lacks_all_outputs() const;

  // Makes a flag for each output. A kernel sets the flag to 1 if a value of the output is not finite. hand_over() copies the
  // flags to the host. Returns null if no check is wanted, or if this rank has no GPU.
  std::int32_t* make_flags(device::cuda::Stream stream);
  // Are the results checked for values that are not finite (HVDLITE_CHECK_FINITE)?
  bool watches_finite() const { return watches_finite_; }

 private:
  bool is_foreign(const Entry& entry) const {
    return entry.request && entry.request->device != gpu().ordinal();
  }
  std::vector<device::Piece> pieces(bool outputs, std::size_t element_bytes) const;
  void collect_flags(device::cuda::Stream stream);

  DeviceLink& link_;
  std::vector<PartAddresses> places_;
  std::vector<device::Buffer> buffers_;
  device::EventPtr gathered_;  // after the copies of tensors from other GPUs; null: there are none
  std::int32_t* flags_ = nullptr;
  const bool watches_finite_;
  HandedOver handed_over_;
};

}  // namespace hvdlite::engine
