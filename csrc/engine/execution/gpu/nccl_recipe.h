// How NCCL carries out a reduction: NCCL's type and operator, and the conversions before and after the call of NCCL.
// Thread: pure. Owns: nothing. Blocks: no. Throws: no.
//
//   tensors ── pack: cast to the wire dtype, factor ──► buffer ── NCCL reduces ──► buffer
//   buffer ── unpack: factor, divisor, cast ──► tensors
//
// All members derive the same recipe from their agreement. If nothing has to be converted, one rank may pack while another rank
// gives NCCL its single tensor directly: the reduction is the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "device/fusion_kernels.h"
#include "device/nccl_abi.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

struct Recipe {
  base::DType wire = base::DType::kFloat32;  // dtype of the elements in the buffer
  device::nccl::DataType type = device::nccl::kFloat32;
  std::size_t parts = 1;  // NCCL's elements in one wire element
  device::nccl::RedOp op = device::nccl::kSum;
  device::Conversion pack;
  device::Conversion unpack;
  bool plain = false;  // nothing is converted
};

// The recipe of an allreduce or reducescatter among `ranks` members; an Average divides by `divisor`. For an Average of 8-bit
// and 32-bit integers NCCL adds in 64 bits, as hvdlite does on the host. `float32_sums`: a member asks for float32 sums of
// 16-bit floats. Returns nullopt for 16-bit integers and for Adasum, which NCCL does not have.
std::optional<Recipe> nccl_recipe(const Request& request, std::int64_t divisor, int ranks,
                                  bool float32_sums);

}  // namespace hvdlite::engine
