// The fusion kernels as the host's compiler understands them, on ordinary memory, called by tests/unit/test_fusion_kernels.py.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing: -1 is an error of the library's, whose text is kept.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

struct Dim3 {
  unsigned x, y, z;
};
thread_local Dim3 blockIdx, threadIdx;

#define HVDLITE_HOST_KERNELS
#include "base/error.h"
#include "cuda/fusion_kernels.cu"
#include "device/piece_layout.h"

namespace {

using hvdlite_kernels::Arguments;

thread_local std::string problem;

const std::map<std::string, void (*)(const Arguments&)>& kernels() {
  static const std::map<std::string, void (*)(const Arguments&)> all{
#define ROW(name, ...) {#name, &name},
      HVDLITE_KERNEL_LIST(ROW)
#undef ROW
  };
  return all;
}

}  // namespace

extern "C" {

struct FusionPieces {
  std::size_t count;
  void* const* tensors;
  const std::size_t* offsets;
  const std::size_t* counts;
};

struct FusionConversion {
  int from, to, op, unpack;
  double factor;
  std::int64_t divisor;
};

// backwards: the last block and thread come first.
__attribute__((visibility("default"))) int fusion_host_move(const FusionPieces* given, void* buffer,
                                                            const FusionConversion* conversion,
                                                            std::int32_t* nonfinite,
                                                            int force_table, int multiprocessors,
                                                            int backwards) try {
  namespace device = hvdlite::device;
  std::vector<device::Piece> pieces;
  for (std::size_t i = 0; i < given->count; ++i) {
    pieces.push_back({given->tensors[i], given->offsets[i], given->counts[i]});
  }
  const device::FusionPlan plan = device::plan_fusion(
      {static_cast<hvdlite::base::DType>(conversion->from),
       static_cast<hvdlite::base::DType>(conversion->to), conversion->factor, conversion->divisor,
       static_cast<hvdlite::base::ReduceOp>(conversion->op)},
      nonfinite != nullptr);
  Arguments arguments{};
  const bool fits =
      device::describe_pieces(pieces, plan, conversion->unpack != 0, multiprocessors, &arguments);
  std::vector<std::uint64_t> table((device::table_bytes(arguments) + 7) / 8);
  if (!fits || force_table != 0) {
    device::write_table(pieces, plan, arguments, table.data());
    arguments.table = reinterpret_cast<std::uintptr_t>(table.data());
    std::fill(std::begin(arguments.tensor), std::end(arguments.tensor), 1);  // not to be read
  }
  arguments.buffer = reinterpret_cast<std::uintptr_t>(buffer);
  arguments.nonfinite = reinterpret_cast<std::uintptr_t>(nonfinite);
  arguments.factor = plan.factor;
  arguments.divisor = plan.divisor;
  arguments.identity = plan.identity;
  arguments.from = plan.from;
  arguments.to = plan.to;
  const auto kernel = kernels().at(device::kKernelNames[plan.number]);
  const unsigned threads = hvdlite_kernels::kThreads;
  for (unsigned block = 0; block < arguments.tiles; ++block) {
    blockIdx.x = backwards != 0 ? arguments.tiles - 1 - block : block;
    for (unsigned thread = 0; thread < threads; ++thread) {
      threadIdx.x = backwards != 0 ? threads - 1 - thread : thread;
      kernel(arguments);
    }
  }
  return static_cast<int>(arguments.tiles);
} catch (const hvdlite::base::Error& error) {
  problem = error.what();
  return -1;
}

__attribute__((visibility("default"))) const char* fusion_host_problem() { return problem.c_str(); }

}  // extern "C"
