#include <string>

#include "base/error.h"
#include "kernels/kernels.h"
#include "kernels/reduce_table.h"

namespace hvdlite::kernels {
namespace {

// Null for an instruction set that this build has no kernels for.
const KernelTable* table_of(Isa isa) {
#if HVDLITE_X86_KERNELS
  if (isa == Isa::kAvx2) return &kAvx2Table;
  if (isa == Isa::kAvx512) return &kAvx512Table;
#endif
  return isa == Isa::kScalar ? &kScalarTable : nullptr;
}

// All features that the file of this instruction set is compiled with.
bool processor_runs(Isa isa) {
#if HVDLITE_X86_KERNELS
  if (isa == Isa::kAvx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (isa == Isa::kAvx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("f16c");
  }
#endif
  return isa == Isa::kScalar;
}

[[noreturn]] void throw_unsupported(base::DType dtype, base::ReduceOp op) {
  const std::string pair = std::string(name_of(op)) + " of " + std::string(name_of(dtype));
  const char* remedy = op == base::ReduceOp::kAdasum
                           ? "Adasum combines whole tensors and is not offered; use Average"
                           : "use Max (any) or Min (all), or cast to a number first";
  throw base::Error(base::ErrorCode::kUnsupported, pair + " is not supported: " + remedy);
}

}  // namespace

const ReduceKernels& reduce_kernels(base::DType dtype, base::ReduceOp op, Isa isa) {
  const auto row = static_cast<int>(dtype);
  const auto column = static_cast<int>(op);
  HVD_CHECK(row < base::kNumDTypes && column < kNumReduceOps);
  if (!isa_supported(isa)) {
    throw base::Error(base::ErrorCode::kUnsupported,
                      std::string("the ") + name_of(isa) +
                          " kernels do not run here: this processor or this build lacks them; "
                          "use kernel_isa auto");
  }
  const ReduceKernels& kernels = table_of(isa)->at[row][column];
  if (kernels.load == nullptr) throw_unsupported(dtype, op);
  return kernels;
}

base::DType accumulator_of(base::DType dtype, base::ReduceOp op) {
  return reduce_kernels(dtype, op, Isa::kScalar).accumulator;
}

bool isa_supported(Isa isa) { return table_of(isa) != nullptr && processor_runs(isa); }

Isa best_isa() {
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    if (isa_supported(isa)) return isa;
  }
  return Isa::kScalar;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown instruction set";
}

}  // namespace hvdlite::kernels
