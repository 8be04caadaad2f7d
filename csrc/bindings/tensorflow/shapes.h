// What TensorFlow knows of the outputs' shapes before the ops run.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include "tf_api.h"

namespace hvdlite::tensorflow {

// allreduce, broadcast: each output is like its input.
void shapes_like_inputs(TF_ShapeInferenceContext* context, TF_Status* status);
// allgather, reducescatter: like its input, but for the first extent.
void shapes_of_rows(TF_ShapeInferenceContext* context, TF_Status* status);
// The same for the first of two outputs; the second has a number for each rank of the process set.
void shapes_of_alltoall(TF_ShapeInferenceContext* context, TF_Status* status);
// One number.
void shape_of_number(TF_ShapeInferenceContext* context, TF_Status* status);
// No outputs.
void shapes_of_nothing(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace hvdlite::tensorflow
