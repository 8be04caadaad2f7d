// Each function checks some fields of the request, and refuses at the first fault that it finds. What each function looks at:
//
//    check_shape         the shape of every request
//    check_reduction     dtype, op and scales of an allreduce or a reducescatter
//    check_weighted      a request with a weight
//    check_wire          a request whose elements travel as another dtype
//    check_codec         a request with a codec
//    check_splits        the splits of an alltoall
//    check_set_change    a request that adds or removes a process set
//    check_content       calls these, and checks a request without a value, the root of a broadcast, and the place in a group
//
// check_shape comes first, because check_splits reads the first dimension. A scalar has none, and check_shape refuses an
// alltoall of a scalar.
//
// An example of check_splits with 3 members and a tensor of 6 rows: the splits [1, 2, 3] and [1, 2, 0] pass, because the sum
// may be smaller than the number of rows. [1, 2] has too few entries, and the sum of [4, 2, 1] is too large.
#include "engine/model/check_content.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "engine/model/text.h"
#include "kernels/kernels.h"

namespace hvdlite::engine {

using base::DType;
using base::ErrorCode;
using base::OpKind;
using base::ReduceOp;

namespace {

void check_shape(const Request& request) {
  for (const std::int64_t extent : request.shape) {
    if (extent < 0) {
      refuse(request, "shape " + format_shape(request.shape) + " has a negative extent");
    }
  }
  if (!has_possible_size(request.shape, request.dtype)) {
    refuse(request, "no memory holds a tensor of shape " + format_shape(request.shape));
  }
  const bool has_rows = rows_may_differ(request.kind) || request.kind == OpKind::kReducescatter;
  if (has_rows && request.shape.empty()) {
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
  // The text advises the largest number of ranks that works, for example 4 if the set has 6.
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
  // Adasum has no entry in the table of kernels, because it combines whole tensors. So why_unsupported() would refuse it.
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
  // A codec takes the dtypes whose sums are accumulated in float32. accumulator_of() throws if no kernel has this dtype and op,
  // but check_reduction() has refused such requests before.
  if (kernels::accumulator_of(request.dtype, request.op) != DType::kFloat32) {
    refuse(
        request,
        std::string(base::name_of(request.dtype)) + " cannot travel as " + codec +
            ": only float32, float16 and bfloat16 can; cast the tensor, or leave the compression "
            "out",
        ErrorCode::kUnsupported);
  }
}

void check_splits(const Request& request, std::size_t ranks) {
  if (request.splits.size() != ranks) {
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

// The ranks of a new set must ascend, so each rank is compared only with the rank before it in the list. check_request sorts
// the list that a caller gives; only the list of a request from another rank can be unsorted.
void check_set_change(const Request& request, int world) {
  if (request.kind == OpKind::kRemoveProcessSet) {
    if (request.root == 0) refuse(request, "the global process set cannot be removed");
    return;
  }
  if (request.splits.empty()) refuse(request, "a process set needs at least one rank");
  for (std::size_t i = 0; i < request.splits.size(); ++i) {
    const std::int64_t rank = request.splits[i];
    if (rank < 0 || rank >= world) {
      refuse(request, "invalid rank " + std::to_string(rank) + "; ranks are 0 to " +
                          std::to_string(world - 1));
    }
    if (i > 0 && rank <= request.splits[i - 1]) {
      refuse(request, (rank == request.splits[i - 1] ? "duplicate rank " : "unsorted rank ") +
                          std::to_string(rank));
    }
  }
}

}  // namespace

void refuse(const Request& request, const std::string& why, ErrorCode code) {
  throw base::Error(code, describe(request) + ": " + why);
}

void check_content(const Request& request, const std::vector<int>& members, int world) {
  check_shape(request);
  check_reduction(request, members.size());
  check_weighted(request);
  check_wire(request);
  check_codec(request);
  if (request.kind == OpKind::kAlltoall) check_splits(request, members.size());
  if (changes_sets(request.kind)) check_set_change(request, world);
  if (request.absent && request.kind != OpKind::kAllreduce) {
    refuse(request, "only an allreduce may lack a value");
  }
  if (request.kind == OpKind::kBroadcast && !std::ranges::binary_search(members, request.root)) {
    refuse(request, "broadcast received invalid root rank " + std::to_string(request.root) +
                        " for provided process set (its " + format_ranks(members) + ")");
  }
  if (request.group_size < 0 ||
      (request.group_size > 0 &&
       (request.group_index < 0 || request.group_index >= request.group_size))) {
    refuse(request, "group member " + std::to_string(request.group_index) + " of " +
                        std::to_string(request.group_size) + " does not exist");
  }
}

}  // namespace hvdlite::engine
