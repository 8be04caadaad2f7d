// A submitted request passes these functions in this order (Engine::intern). Each needs what the earlier ones have found:
//
//    set_of           finds the process set
//    locate           only if the request names an arena: finds the tensor in it
//    check_request    checks the other fields, and makes the sealed Request; not called if the Interner knows the request
//    check_memory     checks the addresses, which may differ at each submission while all fields stay equal
//
// The requests of a prepared group pass the first three functions once, in Engine::prepare(). A submission of the group calls
// check_memory only for addresses on a GPU and for null addresses (Engine::fill).
//
// check_request first fills in the splits of an alltoall and sorts the ranks of a new set. Then it calls check_content, which
// refuses missing splits and unsorted ranks. For example, an alltoall of 6 rows without splits on a set of 3 ranks gets the
// splits [2, 2, 2].
#include "engine/intake/check_request.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/model/check_content.h"
#include "engine/model/text.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::OpKind;
using base::ReduceOp;

namespace {

// Checks that the GPU exists, and loads the kernels that a reduction needs. So if the driver or the compiler is missing, the
// caller's call fails. Without this check, an operation in flight would fail later.
void check_device(const Request& request, device::Devices& devices) {
  if (!moves_data(request.kind) && !base::is_point_to_point(request.kind)) {
    refuse(request, "this operation has no tensor, so its device must be the CPU, -1");
  }
  naming(request, [&] {
    device::Device& device = devices.device(request.device);
    if (reduces(request.kind)) static_cast<void>(device.kernels());
  });
}

// Leaves a scalar, and a shape with a negative number of rows, as they are: check_content refuses them with texts of its own.
void fill_in_splits(Request& request, const SetDirectory::Info& set) {
  const bool has_rows = !request.shape.empty() && request.shape[0] >= 0;
  if (request.kind != OpKind::kAlltoall || !request.splits.empty() || !has_rows) return;
  const auto ranks = static_cast<std::int64_t>(set.members->size());
  if (request.shape[0] % ranks != 0) {
    refuse(request,
           "splits not provided, but the first dimension " + std::to_string(request.shape[0]) +
               " is not an even multiple of the number of workers (" + std::to_string(ranks) + ")");
  }
  request.splits.assign(static_cast<std::size_t>(ranks), request.shape[0] / ranks);
}

void check_peer(const Request& request, const SetDirectory::Info& set) {
  const bool sends = request.kind == OpKind::kSend;
  const bool any = !sends && request.root == kAny;
  if (!any && !std::binary_search(set.members->begin(), set.members->end(), request.root)) {
    refuse(request, "the process set has no rank " + std::to_string(request.root) + " (it has " +
                        format_ranks(*set.members) + "); give the rank's number in the whole job");
  }
  if (request.tag < (sends ? 0 : kAny)) {
    refuse(request,
           sends ? "give a tag of 0 or more" : "give a tag of 0 or more, or -1 for any tag");
  }
}

// NCCL does not check alignment, so the engine does: after a kernel has read a misaligned number, the GPU's context is
// unusable until the process ends. A complex number needs only the alignment of its real and its imaginary part.
void check_alignment(const Request& request, const void* memory) {
  if (!reduces(request.kind)) return;  // other kinds move bytes
  const std::size_t unit = base::size_of_real(request.dtype);
  if (reinterpret_cast<std::uintptr_t>(memory) % unit == 0) return;
  refuse(request, "its memory on GPU " + std::to_string(request.device) + " begins at " +
                      address_text(memory) + ", which is no multiple of the " +
                      std::to_string(unit) +
                      " bytes of its numbers, so the GPU cannot reduce it; give a copy of it");
}

}  // namespace

void check_memory(const Request& request, const void* input, const void* output,
                  device::Devices& devices, KnownAddresses& known) {
  const bool in = base::moves_data(request.kind) || request.kind == OpKind::kSend;
  const bool out = request.kind == OpKind::kAllreduce || request.kind == OpKind::kBroadcast ||
                   request.kind == OpKind::kRecv;
  if (output != nullptr && (request.kind == OpKind::kAlltoall || (request.on_gpu() && !out))) {
    refuse(request, "the engine makes the output of this operation; give no memory for it");
  }
  // A tensor without elements may have a null address.
  if (request.bytes() == 0) return;
  if (in && input == nullptr && !request.absent) {
    refuse(request, "no input memory was given");
  }
  if (out && output == nullptr) refuse(request, "no output memory was given");
  if (!request.on_gpu()) return;
  // If the operation is in place, the input's check covers the output. A rank without a value has no input to check.
  const bool check_output = request.absent || output != input;
  if (!request.absent) check_alignment(request, input);
  if (check_output) check_alignment(request, output);
  if (!request.absent) known.check(devices, request, input);
  if (check_output) known.check(devices, request, output);
}

std::shared_ptr<const transport::Arena> locate(RequestView& view, const SetDirectory::Info& set,
                                               const ArenaDirectory& arenas, const void* input,
                                               const void* output) {
  const std::size_t bytes = view.bytes();
  // The shape is not checked yet, so `bytes` may also be 0 because the product overflowed. In that case check_content refuses
  // the shape.
  if (bytes == 0) {
    view.arena = 0;
    return nullptr;
  }
  const auto no = [&](const std::string& why) { refuse(view.copy(set.id), why); };
  auto arena = arenas.find(view.arena);
  if (!arena || arena->set() != set.id) {
    no("this process set has no open arena " + std::to_string(view.arena));
  }
  if (view.device >= 0) no("an arena is host memory, but the tensor is on a GPU");
  const bool sums = view.op == ReduceOp::kSum || view.op == ReduceOp::kAverage;
  if (view.kind != OpKind::kAllreduce || !sums || !std::isfinite(view.prescale) ||
      view.prescale <= 0) {
    no("in an arena only allreduces with Sum or Average and a positive prescale factor work");
  }
  if (!view.absent && input != output) {
    no("a tensor in an arena is reduced in place: output must be input");
  }
  if (!arena->holds(output, bytes)) {
    no("the tensor does not lie in arena " + std::to_string(view.arena));
  }
  // The addresses differ from rank to rank, but an offset has the same meaning on all ranks.
  view.arena_offset = arena->offset_of(output);
  return arena;
}

SetDirectory::Info set_of(const RequestView& view, const SetDirectory& sets, int rank) {
  auto set = sets.find(view.set);
  if (!set) {
    refuse(view.copy({view.set, 0}),
           "Process set provided does not exist, or has not been registered");
  }
  if (!set->is_member()) {
    refuse(view.copy(set->id), "rank " + std::to_string(rank) +
                                   " is not a member of the provided process set (its " +
                                   format_ranks(*set->members) + ")");
  }
  return *std::move(set);
}

RequestPtr check_request(const RequestView& view, const SetDirectory::Info& set,
                         const SetDirectory& sets, int world, device::Devices& devices) {
  Request request = view.copy(set.id);
  if (base::is_point_to_point(request.kind)) {
    check_peer(request, set);
  }
  if (request.on_gpu()) check_device(request, devices);
  if (request.kind == OpKind::kJoin) request.name = kJoinName;
  if (request.name.empty())
    refuse(request, "a request of a prepared group needs a name; give it one");
  fill_in_splits(request, set);
  if (request.kind == OpKind::kAddProcessSet) std::ranges::sort(request.splits);
  check_content(request, *set.members, world);
  // check_content cannot check whether the set exists, because it does not know the process sets.
  if (request.kind == OpKind::kRemoveProcessSet && !sets.find(request.root)) {
    refuse(request, "process set " + std::to_string(request.root) + " does not exist");
  }
  request.seal();
  return std::make_shared<const Request>(std::move(request));
}

}  // namespace hvdlite::engine
