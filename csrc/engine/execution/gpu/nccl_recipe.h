// How NCCL does a reduction of ours: which of its types and operators, and what is converted before and after.
// Thread: pure. Owns: nothing. Blocks: no. Throws: no.
//
//   tensors ── pack: cast to the wire dtype, factor ──► buffer ── ncclAllReduce ──► buffer ── unpack: factor, divisor, cast ──► tensors
//
// All members derive the same from what they agreed on: who packs and who gives his one tensor to NCCL as it is makes no difference
// to the others, as long as nothing has to be converted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "device/fusion_kernels.h"
#include "device/nccl_abi.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

struct Recipe {
  base::DType wire = base::DType::kFloat32;  // of the elements in the buffer
  device::nccl::DataType type = device::nccl::kFloat32;
  std::size_t parts = 1;  // NCCL's elements in one of the wire
  device::nccl::RedOp op = device::nccl::kSum;
  device::Conversion pack;
  device::Conversion unpack;
  bool plain = false;  // nothing is converted
};

// Of an allreduce or reducescatter among `ranks` members; an Average of narrow integers is added in 64 bits, as on the host.
// Nothing if NCCL cannot do it as our kernels do: 16-bit integers, Adasum.
std::optional<Recipe> nccl_recipe(const Request& request, std::int64_t divisor, int ranks,
                                  bool float32_sums);

}  // namespace hvdlite::engine
