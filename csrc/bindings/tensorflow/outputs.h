// Outputs of int32 that the ops fill in themselves.
// Thread: the kernel's. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstdint>

#include "tf_api.h"

namespace hvdlite::tensorflow {

// A vector, or a number if ndim is 0.
void give_integers(TF_OpKernelContext* context, int index, const std::int64_t* extent, int ndim,
                   const std::int32_t* values, TF_Status* status);
// A number, the only output. The op fails if it cannot be had.
void give_number(TF_OpKernelContext* context, std::int32_t number);

}  // namespace hvdlite::tensorflow
