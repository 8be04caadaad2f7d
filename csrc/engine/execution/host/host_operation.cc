// What an operation does, by its kind. Only the weighted allreduce has two collectives:
//
//    kind                                    input and result                  collective
//    allreduce, one tensor                   the tensor                        allreduce
//    allreduce, several, scattered           the tensors where they lie        allreduce of many parts
//    allreduce, several, packed              the fusion buffer                 pack, allreduce in place, unpack
//    weighted allreduce                      the weights; then as above        allreduce of the weights, then of the values
//    prepared allreduce, whole inputs        the payloads; output or buffer    none: start() makes the result
//    prepared allreduce, chunks of inputs    the payloads; output or buffer    gather of the reduced chunks
//    allgather, alltoall, reducescatter      the tensor; Extents::place()      allgather, alltoall, reducescatter
//    broadcast                               the output                        broadcast
//    barrier                                 none                              barrier
//    allreduce without any value             none                              none
//
// An allreduce of several tensors is scattered if the algorithm can take the tensors where they lie (takes_scattered);
// otherwise they are packed. This depends on the size of the tensors, the reduction, the set and the knobs, which are the same
// on all members. It does not depend on where a rank's tensors lie, or on whether the rank has joined. A joined rank packs the
// identity of the op, and gets memory of the pool if the algorithm needs memory.
#include "engine/execution/host/host_operation.h"

#include <cmath>
#include <cstring>

#include "collectives/prepared.h"
#include "kernels/stream.h"

namespace hvdlite::engine {

using base::OpKind;

namespace {

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) kernels::plain_copy(to, from, bytes);
}

// Fills memory with the identity of this sum. For floats the identity is -0, because adding +0 would turn a sum of -0 into +0.
// The prescale is applied to this memory later. So the memory gets -0, or +0 if the prescale is negative.
void fill_with_zeros(std::byte* to, std::size_t bytes, const Request& sum) {
  std::memset(to, 0, bytes);
  if (!base::has_fractions(sum.dtype) || std::signbit(sum.prescale)) return;
  const std::size_t real = base::size_of_real(sum.dtype);
  for (std::size_t sign = real - 1; sign < bytes; sign += real) to[sign] = std::byte{0x80};
}

}  // namespace

// All members know from the agreement whether any rank has a value. If none has, no member starts a collective.
void HostOperation::start() {
  if (has_no_value()) return;
  switch (first_request().kind) {
    case OpKind::kAllreduce:
      start_allreduce();
      break;
    case OpKind::kBroadcast:
      start_broadcast();
      break;
    case OpKind::kAllgather:
    case OpKind::kAlltoall:
    case OpKind::kReducescatter: {
      const Extents extents(fused(), comm_.rank(), comm_.size());
      collective_ = start_with_rows(extents, entries()[0].input, allocate_output(extents), comm_,
                                    context_.selection);
      break;
    }
    case OpKind::kBarrier:
      collective_ = collectives::start_barrier(comm_, context_.selection);
      break;
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
    case OpKind::kSend:
    case OpKind::kRecv:
      HVD_CHECK(false);  // Negotiation and PointToPoint handle these kinds
  }
}

// In a weighted allreduce, the call of advance() that ends the first collective also begins the second. advance() unpacks the
// results before the operation counts as finished, so that every output is written before its completion is done.
bool HostOperation::advance() {
  if (collective_ && !collective_->advance()) return false;
  if (weights_.pending()) {
    const collectives::Reduction mean = reduction_of(fused().parts.front(), comm_.size());
    reduce(weights_.take(mean, comm_.rank(), context_.counters));
    if (!collective_->advance()) return false;
  }
  if (packed_) unpack();
  if (collective_) {
    const collectives::CodedBytes coded = collective_->coded_bytes();
    context_.counters.coded_bytes_before += static_cast<std::int64_t>(coded.before);
    context_.counters.coded_bytes_after += static_cast<std::int64_t>(coded.after);
  }
  collective_.reset();
  return true;
}

// Leaks the outputs that the engine made, because the transport may still write to them.
void HostOperation::abandon() {
  for (const Entry& entry : entries()) {
    if (!entry.request || !entry.completion->output) continue;
    [[maybe_unused]] const void* leaked = entry.completion->output->block.release();
  }
}

void HostOperation::start_allreduce() {
  if (!payloads().empty()) {
    start_prepared_allreduce();
  } else if (first_request().weighted) {
    collective_ = weights_.start(comm_, entries().front().weight, context_.selection);
  } else {
    reduce(reduction_of(fused().parts.front(), comm_.size()));
  }
}

// Reduces the payloads that came with the announcements.
void HostOperation::start_prepared_allreduce() {
  const collectives::PreparedInputs inputs(payloads());
  const collectives::Reduction reduction = reduction_of(first_request(), comm_.size());
  const collectives::Tuning& tuning = context_.selection.tuning;
  collectives::AllreducePart part{nullptr, entries().front().output,
                                  bytes() / base::size_of(first_request().dtype)};
  if (entries().size() > 1) {
    part.output = scratch(bytes());
    packed_ = true;
  }
  // If each payload is a member's whole input, this rank makes the result at once. Otherwise each payload is the chunk of a
  // member's input that this rank reduces for all members.
  if (payloads().front().size() == bytes()) {
    collectives::allreduce_prepared(inputs, comm_.hosts(), part, reduction, tuning.isa);
  } else {
    collective_ = collectives::allreduce_of_parts(comm_, inputs, part, reduction, tuning);
  }
  payloads().clear();
}

// 0 times infinity is not a number. So a rank with the weight 0 contributes the identity instead of its value times 0.
const void* HostOperation::input_of(std::size_t part) const {
  return weights_.counts_nothing() ? nullptr : entries()[part].input;
}

// One tensor is one part, so it needs no packing, whatever the algorithm is.
void HostOperation::reduce(collectives::Reduction reduction) {
  const bool scattered =
      collectives::takes_scattered(bytes(), reduction, comm_, context_.selection);
  if (scattered || fused().parts.size() == 1) {
    start_allreduce_in_place(reduction, scattered);
  } else {
    start_fused_allreduce(reduction);
  }
  if (collective_->result_is_open()) ++context_.counters.open_results;
}

// Reduces straight from and to the tensors. A joined rank's pointers are null. If the allreduce is not scattered, its algorithm
// needs memory for the result, so a joined rank gives it scratch memory. If the members agreed on an arena, the tensors of all
// members lie in the arena, and no member has joined. With `mapped`, the algorithm (allreduce_push) reads the other members'
// tensors in the arena, and applies this member's prescale to all of them. So if the members' prescales differ (own_prescale),
// the tensors are reduced as in any other memory.
void HostOperation::start_allreduce_in_place(collectives::Reduction reduction, bool scattered) {
  collectives::AllreduceArgs args;
  args.parts.reserve(fused().parts.size());
  for (std::size_t i = 0; i < fused().parts.size(); ++i) {
    args.parts.push_back({input_of(i), entries()[i].output,
                          static_cast<std::size_t>(fused().parts[i].request->elements())});
  }
  if (!scattered && args.parts[0].output == nullptr) args.parts[0].output = scratch(bytes());
  args.reduction = reduction;
  if (first_request().arena != 0 && !reduction.own_prescale)
    args.mapped = entries().front().arena->bases();
  collective_ = collectives::start_allreduce(comm_, std::move(args), context_.selection);
}

// The tensors lie one after the other in the buffer, without gaps, in the order of the FusedOp. This order is the same on all
// members.
void HostOperation::start_fused_allreduce(collectives::Reduction reduction) {
  const Request& first = first_request();
  std::byte* const buffer = scratch(bytes());
  packed_ = true;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < fused().parts.size(); ++i) {
    const std::size_t bytes = fused().parts[i].request->bytes();
    if (const void* const input = input_of(i)) {
      copy(buffer + offset, input, bytes);
    } else {
      // This rank contributes nothing. In a FusedOp of several parts (plan_fusion) this happens only if the op is Sum or
      // Average.
      fill_with_zeros(buffer + offset, bytes, first);
    }
    offset += bytes;
  }
  collectives::AllreduceArgs args;
  args.parts = {{buffer, buffer, bytes() / base::size_of(first.dtype)}};
  args.reduction = reduction;
  collective_ = collectives::start_allreduce(comm_, args, context_.selection);
}

// On a rank that has joined, the outputs are null, so unpack() skips them. The buffer returns to the pool for the next
// operation.
void HostOperation::unpack() {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < fused().parts.size(); ++i) {
    const std::size_t bytes = fused().parts[i].request->bytes();
    if (entries()[i].output != nullptr) copy(entries()[i].output, buffer_.get() + offset, bytes);
    offset += bytes;
  }
  buffer_.reset();
}

std::byte* HostOperation::scratch(std::size_t bytes) {
  buffer_ = context_.pool.get(bytes);
  return buffer_.get();
}

void* HostOperation::allocate_output(const Extents& extents) {
  if (!entries()[0].request) return scratch(extents.out_bytes());
  return extents.place(entries()[0], context_.outputs);
}

// The collective has one buffer, `data`: on the root it has the payload to send, and on the other members it gets the result.
// Every member gives its output as `data`. So the root first copies its input to its output, if these are different memory. A
// joined rank gets memory of the pool, because the algorithm may pass the payload on from there.
void HostOperation::start_broadcast() {
  const Request& request = first_request();
  collectives::BroadcastArgs args;
  args.bytes = request.bytes();
  args.root = context_.set.index_of(request.root);
  args.data = entries()[0].output;
  if (args.data == nullptr) {
    args.data = scratch(args.bytes);
  } else if (args.root == comm_.rank()) {
    copy(args.data, entries()[0].input, args.bytes);
  }
  collective_ = collectives::start_broadcast(comm_, args, context_.selection);
}

}  // namespace hvdlite::engine
