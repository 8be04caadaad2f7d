// The host memory for each kind, and the data that are copied between it and the GPU:
//
//    kind             input_                   output_           from the GPU            to the GPU
//    allreduce        the fusion buffer        = input_          the packed tensors,     the reduced buffer, to be unpacked,
//                                                                or the single tensor    or the single result
//    broadcast        the tensor               = input_          on the root only        on all but the root
//    allgather        own place in output_     all rows          own rows                all rows
//    alltoall         rows to send             rows received     all rows to send        all rows received
//    reducescatter    the whole tensor         own rows          the whole tensor        own rows
//
// Two operations of one lane, 1 and 2. At "ready" the stream waits for the events of the inputs:
//
//    link's stream    | ready 1 | pack 1 | copy 1 | ready 2 | pack 2 | copy 2 |
//    host                                         | collective 1 |            | collective 2 |
//    return stream                                               | copy 1 | unpack 1 |       | copy 2 | unpack 2 |
//
// The host does not wait for a copy: advance() returns false until the GPU has reached the event arrived_. After this event the
// watcher wakes the engine, which then has to begin the collective. After the copies to the GPU the watcher need not wake the
// engine, because the operation has ended as soon as these copies are enqueued.
//
// A rank that lacks inputs takes part in the collective. If it lacks all inputs of a reduction, it gives the collective null,
// which stands for the op's identity. If it lacks only some tensors of a fusion buffer, packing fills their places with the
// identity.
#include "engine/execution/gpu/staged_operation.h"

#include "collectives/chunking.h"

namespace hvdlite::engine {

using base::OpKind;
using base::ReduceOp;

// If no rank has a value, there is nothing to do. If an operation copies nothing from the GPU, for example a broadcast on a
// rank that is not the root, arrived_ stays null, and the collective begins as soon as its turn in the lane comes.
void StagedOperation::start() {
  if (has_no_value()) {
    stage_ = Stage::kFinished;
    return;
  }
  gather();
  fetch();
  if (!fetched_) return;
  arrived_ = gpu().record(link().stream());
  context().watcher.watch(arrived_);
}

// One call passes through as many stages as it can.
bool StagedOperation::advance() {
  if (stage_ == Stage::kArriving) {
    if (arrived_ && !arrived_->finished()) return false;
    if (first_request().weighted) {
      collective_ = weights_.start(comm_, entries().front().weight, context().selection);
      stage_ = Stage::kWeighing;
    } else {
      move();
    }
  }
  if (stage_ == Stage::kWeighing) {
    if (!collective_->advance()) return false;
    move();
  }
  if (stage_ == Stage::kMoving) {
    if (!collective_->advance()) return false;
    collective_.reset();
    if (has_gpu()) bring_back();
    stage_ = Stage::kFinished;
  }
  return true;
}

std::byte* StagedOperation::host_memory(std::size_t bytes) {
  if (has_gpu()) return static_cast<std::byte*>(pinned_memory(bytes));
  return leases_.emplace_back(context().pool.get(bytes)).get();
}

void StagedOperation::fetch_bytes(std::byte* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  gpu().copy(to, from, bytes, link().stream());
  fetched_ = true;
}

// Several tensors are packed. A single tensor is packed only if its dtype is converted, or if its result has to be checked for
// values that are not finite, because unpacking does the check.
bool StagedOperation::is_packed() const {
  return entries().size() > 1 || first_request().wire != Wire::kSame || watches_finite();
}

// --- arriving -------------------------------------------------------------------------------------------------------

// Allocates the host memory for the input and for the result, and starts the copies from the GPU.
void StagedOperation::fetch() {
  const Request& first = first_request();
  const void* own = place(0).input;
  if (first.kind != OpKind::kAllreduce && first.kind != OpKind::kBroadcast) {
    extents_ = std::make_unique<Extents>(fused(), comm_.rank(), comm_.size());
    output_ = host_memory(extents_->out_bytes());
  }
  switch (first.kind) {
    case OpKind::kAllreduce:
      input_ = output_ = host_memory(buffer_bytes());
      fetch_reduction();
      break;
    case OpKind::kBroadcast:
      input_ = output_ = host_memory(first.bytes());
      if (comm_.rank() == set().index_of(first.root)) {
        fetch_bytes(input_, own, first.bytes());
      }
      break;
    case OpKind::kAllgather: {
      const std::vector<std::size_t> bytes = extents_->bytes(extents_->rows);
      input_ = output_ + collectives::offsets_of(bytes)[static_cast<std::size_t>(comm_.rank())];
      fetch_bytes(input_, own, bytes[static_cast<std::size_t>(comm_.rank())]);
      break;
    }
    case OpKind::kAlltoall: {
      const std::size_t sent = collectives::total_of(extents_->bytes(extents_->sent));
      input_ = host_memory(sent);
      fetch_bytes(input_, own, sent);
      break;
    }
    default:  // reducescatter
      if (own == nullptr) break;
      input_ = host_memory(first.bytes());
      fetch_bytes(input_, own, first.bytes());
  }
}

void StagedOperation::fetch_reduction() {
  if (lacks_all_inputs()) {
    input_ = nullptr;
    return;
  }
  const std::size_t bytes = buffer_bytes();
  if (bytes == 0) return;
  if (!is_packed()) {
    fetch_bytes(input_, place(0).input, bytes);
    return;
  }
  const Request& first = first_request();
  const device::Conversion cast = {.from = first.dtype, .to = first.wire_dtype(), .op = first.op};
  packed_ = device_memory(bytes, link().stream());
  kernels().pack(inputs(element_bytes()), packed_, cast, nullptr, link().stream());
  fetch_bytes(input_, packed_, bytes);
}

// --- moving ---------------------------------------------------------------------------------------------------------

// Sets stage_ to kMoving, so that awaits_turn() becomes false. Only after that the lane advances the next staged operation,
// because collectives use shared memory in the order in which they are created.
void StagedOperation::move() {
  stage_ = Stage::kMoving;
  const Request& first = first_request();
  if (extents_) {
    collective_ = start_with_rows(*extents_, input_, output_, comm_, context().selection);
  } else if (first.kind == OpKind::kBroadcast) {
    collective_ = collectives::start_broadcast(
        comm_, {output_, first.bytes(), set().index_of(first.root)}, context().selection);
  } else {
    move_allreduce();
  }
}

// Reduces the fusion buffer as one tensor. Only for Adasum each tensor is a separate part, because Adasum treats each tensor by
// itself.
void StagedOperation::move_allreduce() {
  collectives::AllreduceArgs args;
  args.reduction = reduction_of(fused().parts.front(), comm_.size());
  if (weights_.pending()) {
    args.reduction = weights_.take(args.reduction, comm_.rank(), context().shared.counters);
  }
  args.reduction.dtype = first_request().wire_dtype();
  if (args.reduction.op == ReduceOp::kAdasum) {
    for (const device::Piece& piece : inputs(element_bytes())) {
      const std::size_t offset = piece.offset * element_bytes();
      const bool given = input_ != nullptr && piece.tensor != nullptr;
      args.parts.push_back({given ? input_ + offset : nullptr, output_ + offset, piece.count});
    }
  } else {
    const std::byte* input = weights_.counts_nothing() ? nullptr : input_;
    args.parts = {{input, output_, buffer_elements(element_bytes())}};
  }
  collective_ = collectives::start_allreduce(comm_, std::move(args), context().selection);
}

// --- returning ------------------------------------------------------------------------------------------------------

// The root of a broadcast copies nothing from host memory. If the root's output is not its input, the value is copied from the
// input to the output on the GPU.
void StagedOperation::bring_back() {
  const Request& first = first_request();
  const device::cuda::Stream stream = link().return_stream();
  const device::Current current(gpu());
  // The outputs may be written only after the inputs' events, even if nothing was copied from the inputs.
  order_inputs(stream);
  const auto bring = [&](void* to, std::size_t bytes) {
    if (to != nullptr && bytes > 0) gpu().copy(to, output_, bytes, stream);
  };
  if (extents_) {
    make_output(*extents_, stream);
    bring(place(0).output, extents_->out_bytes());
  } else if (first.kind == OpKind::kBroadcast) {
    const PartAddresses& own = place(0);
    if (comm_.rank() != set().index_of(first.root)) {
      bring(own.output, first.bytes());
    } else if (own.output != own.input && first.bytes() > 0) {
      gpu().copy(own.output, own.input, first.bytes(), stream);
    }
  } else if (!is_packed()) {
    bring(place(0).output, buffer_bytes());
  } else if (buffer_bytes() > 0 && !lacks_all_outputs()) {
    const std::size_t bytes = buffer_bytes();
    // If packed_ has the inputs, its memory is used again for the result: the copy from packed_ to the host is complete.
    if (packed_ == nullptr) packed_ = device_memory(bytes, stream);
    bring(packed_, bytes);
    const device::Conversion cast = {.from = first.wire_dtype(), .to = first.dtype, .op = first.op};
    kernels().unpack(outputs(element_bytes()), packed_, cast, make_flags(stream), stream);
  }
  hand_over(stream);
}

}  // namespace hvdlite::engine
