#include "engine/intake/check_request.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/model/text.h"
#include "kernels/kernels.h"

namespace hvdlite::engine {

using base::DType;
using base::Error;
using base::ErrorCode;
using base::OpKind;
using base::ReduceOp;

namespace {

[[noreturn]] void refuse(const Request& request, const std::string& why,
                         ErrorCode code = ErrorCode::kInvalidArgument) {
  throw Error(code, describe(request) + ": " + why);
}

bool needs_rows(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall || kind == OpKind::kReducescatter;
}

void check_shape(const Request& request) {
  for (const std::int64_t extent : request.shape) {
    if (extent < 0) {
      refuse(request, "shape " + format_shape(request.shape) + " has a negative extent");
    }
  }
  if (!has_possible_size(request.shape, request.dtype)) {
    refuse(request, "no memory holds a tensor of shape " + format_shape(request.shape));
  }
  if (needs_rows(request.kind) && request.shape.empty()) {
    refuse(request, "a scalar has no first dimension; reshape it to one element");
  }
}

void check_adasum(const Request& request, std::size_t ranks) {
  if (!base::is_float(request.dtype)) {
    refuse(
        request,
        "Adasum of " + std::string(base::name_of(request.dtype)) +
            " is not supported: cast it to float16, bfloat16, float32 or float64, or use Average",
        ErrorCode::kUnsupported);
  }
  if (!std::has_single_bit(ranks)) {
    refuse(request,
           "Running Adasum with non-power of 2 ranks is not supported yet. (This process set has " +
               std::to_string(ranks) + " ranks; use op=Average, or a process set of " +
               std::to_string(std::bit_floor(ranks)) + ")",
           ErrorCode::kUnsupported);
  }
}

void check_reduction(const Request& request, std::size_t ranks) {
  if (request.kind != OpKind::kAllreduce && request.kind != OpKind::kReducescatter) return;
  if (request.kind == OpKind::kReducescatter && request.op != ReduceOp::kSum &&
      request.op != ReduceOp::kAverage) {
    refuse(request,
           "Reducescatter currently only supports AVERAGE and SUM, not " +
               std::string(base::name_of(request.op)) +
               "; use allreduce and take this rank's rows of the result",
           ErrorCode::kUnsupported);
  }
  if (request.op == ReduceOp::kAdasum) return check_adasum(request, ranks);
  const std::string gap = kernels::why_unsupported(request.dtype, request.op);
  if (!gap.empty()) refuse(request, gap, ErrorCode::kUnsupported);
  if (request.dtype == DType::kBool && (request.prescale != 1.0 || request.postscale != 1.0)) {
    refuse(request, "bool cannot be scaled; cast it to a number first");
  }
}

void check_weighted(const Request& request) {
  if (!request.weighted) return;
  if (request.kind != OpKind::kAllreduce) {
    refuse(request, "only an allreduce can have a weight; leave the weight out");
  }
  if (request.op != ReduceOp::kAverage) {
    refuse(request, "a weight belongs to an allreduce with op=Average, but this is op=" +
                        std::string(base::name_of(request.op)) + "; leave the weight out");
  }
  if (!base::has_fractions(request.dtype)) {
    refuse(request, "a weighted mean of " + std::string(base::name_of(request.dtype)) +
                        " would be cut to whole numbers; cast the tensor to a float first");
  }
}

void check_wire(const Request& request) {
  if (request.wire == Wire::kSame) return;
  const bool sums = request.op == ReduceOp::kSum || request.op == ReduceOp::kAverage;
  const std::string wire(base::name_of(request.wire_dtype()));
  if (!request.on_gpu()) {
    refuse(request,
           "the engine casts only GPU memory to " + wire +
               "; cast a tensor of the CPU before you submit it, as "
               "compression=hvd.Compression.fp16 does",
           ErrorCode::kUnsupported);
  }
  if (request.kind != OpKind::kAllreduce || !sums) {
    refuse(request,
           "only an allreduce with Sum or Average can travel as " + wire +
               "; leave the compression out",
           ErrorCode::kUnsupported);
  }
  if (request.dtype != DType::kFloat32 && request.dtype != DType::kFloat64) {
    refuse(request,
           std::string(base::name_of(request.dtype)) + " cannot travel as " + wire +
               ": only float32 and float64 can; leave the compression out",
           ErrorCode::kUnsupported);
  }
}

void check_codec(const Request& request) {
  if (!request.codec) return;
  const std::string codec(base::name_of(request.codec.kind));
  if (!base::is_possible_block(request.codec.block)) {
    refuse(request, "a codec has no blocks of " + std::to_string(request.codec.block) +
                        " elements: give a multiple of " + std::to_string(base::kBlockStep) +
                        " up to " + std::to_string(base::kLargestBlock));
  }
  if (request.on_gpu()) {
    refuse(request,
           "codecs work only for tensors in host memory so far, and not on a GPU; use "
           "compression=hvd.Compression.fp16 or bf16",
           ErrorCode::kUnsupported);
  }
  if (request.kind != OpKind::kAllreduce) {
    refuse(request,
           std::string(base::name_of(request.kind)) + " has no codecs, and compression is " +
               codec + "; leave the compression out, or use hvd.Compression.fp16",
           ErrorCode::kUnsupported);
  }
  if (request.op != ReduceOp::kSum && request.op != ReduceOp::kAverage) {
    refuse(request,
           "a codec works for sums, and op is " + std::string(base::name_of(request.op)) +
               "; use op=Average or Sum, or leave the compression " + codec + " out",
           ErrorCode::kUnsupported);
  }
  if (kernels::accumulator_of(request.dtype, request.op) != DType::kFloat32) {
    refuse(
        request,
        std::string(base::name_of(request.dtype)) + " cannot travel as " + codec +
            ": only float32, float16 and bfloat16 can; cast the tensor, or leave the compression "
            "out",
        ErrorCode::kUnsupported);
  }
}

// Checks that the GPU exists, and loads the kernels that reductions need. So a missing driver or compiler is reported here, and
// not by an operation in flight.
void check_device(const Request& request, device::Devices& devices) {
  if (!moves_data(request.kind) && !base::is_point_to_point(request.kind)) {
    refuse(request, "this operation has no tensor, so its device must be the CPU, -1");
  }
  naming(request, [&] {
    device::Device& device = devices.device(request.device);
    if (reduces(request.kind)) static_cast<void>(device.kernels());
  });
}

void check_splits(Request& request, const SetDirectory::Info& set) {
  if (request.kind != OpKind::kAlltoall) return;
  const auto ranks = static_cast<std::int64_t>(set.members->size());
  if (request.splits.empty()) {
    if (request.shape[0] % ranks != 0) {
      refuse(request, "splits not provided, but the first dimension " +
                          std::to_string(request.shape[0]) +
                          " is not an even multiple of the number of workers (" +
                          std::to_string(ranks) + ")");
    }
    request.splits.assign(static_cast<std::size_t>(ranks), request.shape[0] / ranks);
  }
  if (static_cast<std::int64_t>(request.splits.size()) != ranks) {
    refuse(request, "Number of entries in splits (" + std::to_string(request.splits.size()) +
                        ") does not equal number of workers (" + std::to_string(ranks) + ")");
  }
  std::int64_t sum = 0;
  for (const std::int64_t split : request.splits) {
    if (split < 0) {
      refuse(request, "splits " + format_shape(request.splits) + " has a negative entry");
    }
    sum += std::min(split, std::numeric_limits<std::int64_t>::max() - sum);  // does not overflow
  }
  if (sum > request.shape[0]) {
    refuse(request, "Sum of splits entries (" + std::to_string(sum) +
                        ") is greater than the first dimension of tensor (" +
                        std::to_string(request.shape[0]) + ")");
  }
}

void check_process_set_ranks(Request& request, const SetDirectory& sets, int world) {
  if (request.kind == OpKind::kRemoveProcessSet) {
    if (request.root == 0) refuse(request, "the global process set cannot be removed");
    if (!sets.find(request.root)) {
      refuse(request, "process set " + std::to_string(request.root) + " does not exist");
    }
  }
  if (request.kind != OpKind::kAddProcessSet) return;
  if (request.splits.empty()) refuse(request, "a process set needs at least one rank");
  std::sort(request.splits.begin(), request.splits.end());
  for (std::size_t i = 0; i < request.splits.size(); ++i) {
    const std::int64_t rank = request.splits[i];
    if (rank < 0 || rank >= world) {
      refuse(request, "invalid rank " + std::to_string(rank) + "; ranks are 0 to " +
                          std::to_string(world - 1));
    }
    if (i > 0 && rank == request.splits[i - 1]) {
      refuse(request, "duplicate rank " + std::to_string(rank));
    }
  }
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

// A kernel that reads a misaligned number makes the GPU's context unusable until the process ends, and NCCL does not
// check alignment. A complex number needs only the alignment of its two parts.
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
  if (request.bytes() == 0) return;
  if (in && input == nullptr && !request.absent) {
    refuse(request, "no input memory was given");
  }
  if (out && output == nullptr) refuse(request, "no output memory was given");
  if (!request.on_gpu()) return;
  if (!request.absent) check_alignment(request, input);
  if (output != input) check_alignment(request, output);
  if (!request.absent) known.check(devices, request, input);
  if (output != input) known.check(devices, request, output);
}

std::shared_ptr<const transport::Arena> locate(RequestView& view, const SetDirectory::Info& set,
                                               const ArenaDirectory& arenas, const void* input,
                                               const void* output) {
  const std::size_t bytes = view.bytes();
  if (bytes == 0) {
    view.arena = 0;
    return nullptr;
  }
  auto arena = arenas.find(view.arena);
  if (!arena || arena->set() != set.id) {
    refuse(view.copy(set.id), "this process set has no open arena " + std::to_string(view.arena));
  }
  if (view.device >= 0) {
    refuse(view.copy(set.id), "an arena is host memory, but the tensor is on a GPU");
  }
  const bool sums = view.op == ReduceOp::kSum || view.op == ReduceOp::kAverage;
  if (view.kind != OpKind::kAllreduce || !sums || !std::isfinite(view.prescale) ||
      view.prescale <= 0) {
    refuse(view.copy(set.id),
           "in an arena only allreduces with Sum or Average and a positive prescale factor work");
  }
  if (!view.absent && input != output) {
    refuse(view.copy(set.id), "a tensor in an arena is reduced in place: output must be input");
  }
  if (!arena->holds(output, bytes)) {
    refuse(view.copy(set.id), "the tensor does not lie in arena " + std::to_string(view.arena));
  }
  view.arena_offset = arena->offset_of(output);
  return arena;
}

SetDirectory::Info set_of(const RequestView& view, const SetDirectory& sets, int rank) {
  auto set = sets.find(view.set);
  if (!set) {
    refuse(view.copy({view.set, 0}),
           "Process set provided does not exist, or has not been registered");
  }
  if (set->index < 0) {
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
  check_shape(request);
  check_reduction(request, set.members->size());
  check_weighted(request);
  check_wire(request);
  check_codec(request);
  check_splits(request, set);
  check_process_set_ranks(request, sets, world);
  if (request.absent && request.kind != OpKind::kAllreduce) {
    refuse(request, "only an allreduce may lack a value");
  }
  if (request.kind == OpKind::kBroadcast &&
      !std::binary_search(set.members->begin(), set.members->end(), request.root)) {
    refuse(request, "broadcast received invalid root rank " + std::to_string(request.root) +
                        " for provided process set (its " + format_ranks(*set.members) + ")");
  }
  if (request.group_size < 0 ||
      (request.group_size > 0 &&
       (request.group_index < 0 || request.group_index >= request.group_size))) {
    refuse(request, "group member " + std::to_string(request.group_index) + " of " +
                        std::to_string(request.group_size) + " does not exist");
  }
  request.seal();
  return std::make_shared<const Request>(std::move(request));
}

}  // namespace hvdlite::engine
