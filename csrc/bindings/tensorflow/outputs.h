// Outputs of int32 that the ops write themselves.
// Thread: the kernel's. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstdint>

#include "tf_api.h"

namespace hvdlite::tensorflow {

// Sets an output to a vector, or to a number if ndim is 0.
void give_integers(TF_OpKernelContext* context, int index, const std::int64_t* extent, int ndim,
                   const std::int32_t* values, TF_Status* status);
// Sets the only output to a number. Fails the op if TensorFlow gives no memory for it.
void give_number(TF_OpKernelContext* context, std::int32_t number);

}  // namespace hvdlite::tensorflow
