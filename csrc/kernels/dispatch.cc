#if HVDLITE_X86_KERNELS
#include <cpuid.h>
#endif

#include <string>

#include "base/error.h"
#include "kernels/codec.h"
#include "kernels/kernels.h"
#include "kernels/table.h"

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

#if HVDLITE_X86_KERNELS
// Clang's __builtin_cpu_supports does not know the name of F16C. F16C uses AVX's registers. That the system saves these
// registers is a part of the check of "avx2".
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

// Does this processor have all features that the file of this instruction set is compiled with? Every operation calls this, but
// the processor is asked only once, because under a hypervisor CPUID takes tens of microseconds.
bool processor_runs(Isa isa) {
#if HVDLITE_X86_KERNELS
  static const bool avx2 = __builtin_cpu_supports("avx2") && has_f16c();
  static const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (isa == Isa::kAvx2) return avx2;
  if (isa == Isa::kAvx512) return avx512;
#endif
  return isa == Isa::kScalar;
}

const ReduceKernels& entry(const KernelTable& table, base::DType dtype, base::ReduceOp op) {
  const auto row = static_cast<int>(dtype);
  const auto column = static_cast<int>(op);
  HVD_CHECK(row < base::kNumDTypes && column < base::kNumReduceOps);
  return table.reduce[row][column];
}

const char* remedy_for(base::DType dtype, base::ReduceOp op) {
  if (op == base::ReduceOp::kAdasum) return "it combines whole tensors; use Average";
  if (dtype == base::DType::kBool) return "use Max (any) or Min (all), or cast to a number first";
  return "complex numbers have Sum and Average only; reduce real and imaginary parts apart";
}

void require_runs(Isa isa) {
  if (isa_supported(isa)) return;
  throw base::Error(base::ErrorCode::kUnsupported,
                    std::string("the ") + name_of(isa) +
                        " kernels do not run here: this processor or this build lacks them; "
                        "set HVDLITE_KERNEL_ISA to auto");
}

}  // namespace

std::string why_unsupported(base::DType dtype, base::ReduceOp op) {
  if (entry(kScalarTable, dtype, op).load != nullptr) return "";
  return std::string(name_of(op)) + " of " + std::string(name_of(dtype)) +
         " is not supported: " + remedy_for(dtype, op);
}

const ReduceKernels& reduce_kernels(base::DType dtype, base::ReduceOp op, Isa isa) {
  require_runs(isa);
  const ReduceKernels& kernels = entry(*table_of(isa), dtype, op);
  if (kernels.load == nullptr) {
    throw base::Error(base::ErrorCode::kUnsupported, why_unsupported(dtype, op));
  }
  return kernels;
}

const CodecKernels& codec_kernels(base::CodecKind kind, Isa isa) {
  require_runs(isa);
  HVD_CHECK(kind != base::CodecKind::kNone && static_cast<int>(kind) < base::kNumCodecKinds);
  return table_of(isa)->codecs[static_cast<std::size_t>(kind)];
}

std::size_t encoded_bytes(const base::Codec& codec, std::size_t n) {
  const auto block = static_cast<std::size_t>(codec.block);
  const auto codes = [&](std::size_t count) {
    return codec.kind == base::CodecKind::kInt4 ? (count + 1) / 2 : count;
  };
  const std::size_t rest = n % block;
  return n / block * (sizeof(float) + codes(block)) + (rest > 0 ? sizeof(float) + codes(rest) : 0);
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
