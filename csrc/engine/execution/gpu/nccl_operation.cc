// An operation passes through two functions:
//
//    start()      gather(); pack, if NCCL cannot use the tensors as they are; NCCL's calls
//    advance()    when the communicator is no longer busy: unpack, if the result is in a buffer of the operation; hand_over()
//
// Why unpacking is not part of start(): a call of NCCL may return before NCCL has enqueued its kernel. A kernel that unpacks
// could then come first in the stream, and would read the buffer before NCCL has reduced it.
//
// The calls for each kind:
//
//    allreduce        AllReduce: in place in the fusion buffer, or from a single tensor to its output (as_it_is)
//    reducescatter    ReduceScatter, if all members get equally many rows; otherwise a Reduce to each member that gets any
//    allgather        AllGather, if all members give equally many rows; otherwise a Broadcast from each member that gives any
//    broadcast        Broadcast
//    alltoall         for each other member a Send and a Recv, without those of 0 bytes; a copy of this rank's own rows
//
// Reductions tell NCCL the type of the elements. All other kinds move bytes.
//
// If an operation makes several calls, they are one group. Without a group the host would have to wait between two calls until
// the communicator is no longer busy. Also, two members that both call Send before Recv could wait for each other.
//
// All members make matching calls. They derive the calls and the counts from the agreed operation, from its sizes and from the
// recipe, and never from their own tensors. A joined rank makes the calls as well. It gives the op's identity to a reduction,
// and no rows to an allgather or alltoall. It receives the result of an allgather, alltoall or broadcast in memory that nobody
// reads.
#include "engine/execution/gpu/nccl_operation.h"

namespace hvdlite::engine {

using base::OpKind;
namespace nccl = device::nccl;

namespace {

std::byte* at(void* memory, std::size_t offset) { return static_cast<std::byte*>(memory) + offset; }
const std::byte* at(const void* memory, std::size_t offset) {
  return static_cast<const std::byte*>(memory) + offset;
}

// All parts of a FusedOp have the same recipe: the planner fuses only operations with the same dtype, wire dtype, op, factors
// and divisor.
std::optional<Recipe> recipe_of(const AgreedOperation& agreed, const DeviceLink& link) {
  const int ranks = link.set().size();
  const std::int64_t divisor = reduction_of(agreed, ranks).divisor;
  return nccl_recipe(*agreed.request, divisor, ranks, link.float32_sums());
}

}  // namespace

bool NcclOperation::serves(const FusedOp& fused, const DeviceLink& link) {
  const Request& first = fused.first();
  if (first.weighted) return false;  // the members exchange weights in host memory
  return !reduces(first.kind) || recipe_of(fused.parts.front(), link);
}

// The lane makes an NcclOperation only if serves() is true. So recipe() is called only for reductions that have a recipe.
Recipe NcclOperation::recipe() const { return *recipe_of(fused().parts.front(), link()); }

void NcclOperation::start() {
  if (has_no_value()) return;
  const device::Current current(gpu());
  gather();
  switch (first_request().kind) {
    case OpKind::kAllreduce:
      allreduce();
      break;
    case OpKind::kAllgather:
      allgather();
      break;
    case OpKind::kBroadcast:
      broadcast();
      break;
    case OpKind::kAlltoall:
      alltoall();
      break;
    case OpKind::kReducescatter:
      reducescatter();
      break;
    default:
      HVD_CHECK(false);  // no other kind comes to a lane of GPU memory
  }
}

bool NcclOperation::advance() {
  if (has_no_value()) return true;
  if (link().busy()) return false;
  const device::Current current(gpu());
  if (unpack_from_ != nullptr) {
    kernels().unpack(unpack_to_, unpack_from_, recipe().unpack, make_flags(stream()), stream());
  }
  hand_over(stream());
  return true;
}

void NcclOperation::check(nccl::Result result, const char* function) {
  link().comm().nccl().check(result, function, comm());
}

// Ends the group even if a call throws. If the group stayed open, later calls of this thread would belong to it.
template <typename Calls>
void NcclOperation::grouped(Calls calls) {
  check(nccl().GroupStart(), "ncclGroupStart");
  try {
    calls();
  } catch (...) {
    nccl().GroupEnd();
    throw;
  }
  check(nccl().GroupEnd(), "ncclGroupEnd");
}

void NcclOperation::allreduce() {
  const Recipe how = recipe();
  const std::size_t element_bytes = base::size_of(how.wire);
  const std::size_t count = buffer_elements(element_bytes);
  if (count == 0) return;
  const PartAddresses& only = place(0);
  // as_it_is: NCCL reads the tensor and writes the output directly. With a check for values that are not finite the tensor is
  // packed, because the kernel that unpacks does the check.
  const bool as_it_is = how.plain && entries().size() == 1 && only.input != nullptr &&
                        only.output != nullptr && !watches_finite();
  const void* from = only.input;
  void* to = only.output;
  if (!as_it_is) {
    to = device_memory(count * element_bytes, stream());
    from = to;
    kernels().pack(inputs(element_bytes), to, how.pack, nullptr, stream());
    unpack_from_ = to;
    unpack_to_ = outputs(element_bytes);
  }
  check(nccl().AllReduce(from, to, count * how.parts, how.type, how.op, comm(), stream()),
        "ncclAllReduce");
}

// A joined rank has no input. So it packs even if nothing is converted: packing fills the buffer with the identity.
void NcclOperation::reducescatter() {
  const Extents extents(fused(), set().index, ranks());
  void* output = make_output(extents, stream());
  const auto count = static_cast<std::size_t>(first_request().elements());
  if (count == 0) return;
  const Recipe how = recipe();
  const std::size_t own_bytes = extents.out_elements() * base::size_of(how.wire);
  if (how.plain && output != nullptr) {
    reduce_rows(place(0).input, output, extents, how);
    return;
  }
  void* packed = device_memory(count * base::size_of(how.wire), stream());
  void* reduced = device_memory(own_bytes, stream());
  kernels().pack(inputs(base::size_of(how.wire)), packed, how.pack, nullptr, stream());
  reduce_rows(packed, reduced, extents, how);
  if (output == nullptr) return;
  unpack_from_ = reduced;
  unpack_to_ = {{output, 0, extents.out_elements()}};
}

// `from` has this rank's values of all rows, and `to` gets the reduced rows of this rank's result. If there are several calls
// of Reduce, only the one whose root is this rank writes to `to`.
void NcclOperation::reduce_rows(const void* from, void* to, const Extents& extents,
                                const Recipe& how) {
  const std::vector<std::size_t> counts = extents.elements(extents.rows);
  if (extents.are_even()) {
    check(nccl().ReduceScatter(from, to, counts.front() * how.parts, how.type, how.op, comm(),
                               stream()),
          "ncclReduceScatter");
    return;
  }
  grouped([&] {
    std::size_t offset = 0;
    for (int peer = 0; peer < ranks(); ++peer) {
      const std::size_t count = counts[static_cast<std::size_t>(peer)];
      if (count == 0) continue;
      check(nccl().Reduce(at(from, offset), to, count * how.parts, how.type, how.op, peer, comm(),
                          stream()),
            "ncclReduce");
      offset += count * base::size_of(how.wire);
    }
  });
}

// NCCL reads the input of a Broadcast only on the root. So the other members may give any address as input.
void NcclOperation::allgather() {
  const Extents extents(fused(), set().index, ranks());
  void* output = make_output(extents, stream());
  if (extents.out_bytes() == 0) return;
  if (output == nullptr) output = device_memory(extents.out_bytes(), stream());
  const std::vector<std::size_t> bytes = extents.bytes(extents.rows);
  const void* input = place(0).input;
  if (extents.are_even()) {
    check(nccl().AllGather(input, output, bytes.front(), nccl::kUInt8, comm(), stream()),
          "ncclAllGather");
    return;
  }
  grouped([&] {
    std::size_t offset = 0;
    for (int peer = 0; peer < ranks(); ++peer) {
      const std::size_t count = bytes[static_cast<std::size_t>(peer)];
      if (count == 0) continue;
      std::byte* part = at(output, offset);
      const void* from = peer == set().index ? input : part;
      check(nccl().Broadcast(from, part, count, nccl::kUInt8, peer, comm(), stream()),
            "ncclBroadcast");
      offset += count;
    }
  });
}

void NcclOperation::broadcast() {
  const std::size_t bytes = first_request().bytes();
  if (bytes == 0) return;
  const int root = set().index_of(first_request().root);
  void* output = place(0).output;
  if (output == nullptr) output = device_memory(bytes, stream());  // this rank has joined
  const void* input = root == set().index ? place(0).input : output;
  check(nccl().Broadcast(input, output, bytes, nccl::kUInt8, root, comm(), stream()),
        "ncclBroadcast");
}

// In the input and in the output the rows of the members lie one after the other. So the offsets `from` and `to` grow with each
// member, this rank included.
void NcclOperation::alltoall() {
  const Extents extents(fused(), set().index, ranks());
  void* output = make_output(extents, stream());
  // Null: this rank has joined. The other members may send rows to it nevertheless.
  if (output == nullptr) output = device_memory(extents.out_bytes(), stream());
  const void* input = place(0).input;
  const std::vector<std::size_t> sent = extents.bytes(extents.sent);
  const std::vector<std::size_t> received = extents.bytes(extents.rows);
  std::size_t from = 0;
  std::size_t to = 0;
  const auto exchange = [&](int peer, std::size_t sends, std::size_t receives) {
    if (peer == set().index) {
      // NCCL's work enters the stream only at the end of the group. So NCCL's work comes after this copy.
      if (sends > 0) gpu().copy(at(output, to), at(input, from), sends, stream());
      return;
    }
    if (sends > 0) {
      check(nccl().Send(at(input, from), sends, nccl::kUInt8, peer, comm(), stream()), "ncclSend");
    }
    if (receives > 0) {
      check(nccl().Recv(at(output, to), receives, nccl::kUInt8, peer, comm(), stream()),
            "ncclRecv");
    }
  };
  grouped([&] {
    for (int peer = 0; peer < ranks(); ++peer) {
      const auto index = static_cast<std::size_t>(peer);
      exchange(peer, sent[index], received[index]);
      from += sent[index];
      to += received[index];
    }
  });
}

}  // namespace hvdlite::engine
