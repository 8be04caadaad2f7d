#include "shapes.h"

#include <limits>

namespace hvdlite::tensorflow {
namespace {

constexpr std::size_t kUnknownExtent = static_cast<std::size_t>(-1);

class InferredShape {
 public:
  InferredShape() : handle_(api().NewShapeHandle()) {}
  explicit InferredShape(TF_ShapeHandle* handle) : handle_(handle) {}
  ~InferredShape() { api().DeleteShapeHandle(handle_); }
  InferredShape(const InferredShape&) = delete;
  InferredShape& operator=(const InferredShape&) = delete;
  operator TF_ShapeHandle*() const { return handle_; }

 private:
  TF_ShapeHandle* handle_;
};

bool ok(const TF_Status* status) { return api().GetCode(status) == kOk; }

void shape_of_rows(TF_ShapeInferenceContext* context, int index, TF_Status* status) {
  const InferredShape input, row, output;
  const InferredShape rows(api().ShapeInferenceContextVectorFromSize(context, kUnknownExtent));
  api().ShapeInferenceContextGetInput(context, index, input, status);
  if (ok(status)) {
    api().ShapeInferenceContextWithRankAtLeast(context, input, 1, input, status);
  }
  if (ok(status)) {
    constexpr auto kEnd = std::numeric_limits<std::int64_t>::max();
    api().ShapeInferenceContextSubshape(context, input, 1, kEnd, row, status);
  }
  if (ok(status)) {
    api().ShapeInferenceContextConcatenateShapes(context, rows, row, output, status);
  }
  if (ok(status)) api().ShapeInferenceContextSetOutput(context, index, output, status);
}

}  // namespace

template <int kSpare>
void shapes_like_inputs(TF_ShapeInferenceContext* context, TF_Status* status) {
  const InferredShape shape;
  const auto count = static_cast<int>(api().ShapeInferenceContextNumInputs(context)) - kSpare;
  for (int i = 0; i < count && ok(status); ++i) {
    api().ShapeInferenceContextGetInput(context, i, shape, status);
    if (ok(status)) api().ShapeInferenceContextSetOutput(context, i, shape, status);
  }
}

template <int kSpare>
void shapes_of_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto count = static_cast<int>(api().ShapeInferenceContextNumInputs(context)) - kSpare;
  for (int i = 0; i < count && ok(status); ++i) shape_of_rows(context, i, status);
}

template void shapes_like_inputs<0>(TF_ShapeInferenceContext*, TF_Status*);
template void shapes_like_inputs<1>(TF_ShapeInferenceContext*, TF_Status*);
template void shapes_like_inputs<2>(TF_ShapeInferenceContext*, TF_Status*);
template void shapes_of_rows<0>(TF_ShapeInferenceContext*, TF_Status*);
template void shapes_of_rows<1>(TF_ShapeInferenceContext*, TF_Status*);

void shapes_of_alltoall(TF_ShapeInferenceContext* context, TF_Status* status) {
  shape_of_rows(context, 0, status);
  const InferredShape numbers(api().ShapeInferenceContextVectorFromSize(context, kUnknownExtent));
  if (ok(status)) api().ShapeInferenceContextSetOutput(context, 1, numbers, status);
}

void shape_of_number(TF_ShapeInferenceContext* context, TF_Status* status) {
  const InferredShape number(api().ShapeInferenceContextScalar(context));
  api().ShapeInferenceContextSetOutput(context, 0, number, status);
}

void shapes_of_nothing(TF_ShapeInferenceContext*, TF_Status*) {}

}  // namespace hvdlite::tensorflow
