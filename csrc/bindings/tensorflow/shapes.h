// The shapes of the outputs, as far as TensorFlow can know them before the ops run.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include "tf_api.h"

namespace hvdlite::tensorflow {

// For ops with one output for each tensor. kSpare: the number of inputs after the tensors: the weight, the anchor.
struct ShapeFunctions {
  ShapeFunction without_anchor, with_anchor;
};
// allreduce, broadcast: each output is like its input.
template <int kSpare>
void shapes_like_inputs(TF_ShapeInferenceContext* context, TF_Status* status);
inline constexpr ShapeFunctions kLikeInputs = {shapes_like_inputs<0>, shapes_like_inputs<1>};
inline constexpr ShapeFunctions kLikeInputsButTheWeight = {shapes_like_inputs<1>,
                                                           shapes_like_inputs<2>};
// allgather, reducescatter: each output is like its input, except for the first extent.
template <int kSpare>
void shapes_of_rows(TF_ShapeInferenceContext* context, TF_Status* status);
inline constexpr ShapeFunctions kRows = {shapes_of_rows<0>, shapes_of_rows<1>};
// alltoall: the first output is like its input, except for the first extent; the second has a number for each rank of the set.
void shapes_of_alltoall(TF_ShapeInferenceContext* context, TF_Status* status);
// One number.
void shape_of_number(TF_ShapeInferenceContext* context, TF_Status* status);
// No outputs.
void shapes_of_nothing(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace hvdlite::tensorflow
