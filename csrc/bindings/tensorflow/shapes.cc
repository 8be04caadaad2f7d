#include "shapes.h"

#include <limits>

namespace hvdlite::tensorflow {
namespace {

constexpr std::size_t kUnknownExtent = static_cast<std::size_t>(-1);

class Shape {
 public:
  Shape() : handle_(api().NewShapeHandle()) {}
  explicit Shape(TF_ShapeHandle* handle) : handle_(handle) {}
  ~Shape() { api().DeleteShapeHandle(handle_); }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;
  operator TF_ShapeHandle*() const { return handle_; }

 private:
  TF_ShapeHandle* handle_;
};

bool ok(const TF_Status* status) { return api().GetCode(status) == kOk; }

void shape_of_rows(TF_ShapeInferenceContext* context, int index, TF_Status* status) {
  const Shape input, row, output;
  const Shape rows(api().ShapeInferenceContextVectorFromSize(context, kUnknownExtent));
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
  const Shape shape;
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
template void shapes_of_rows<0>(TF_ShapeInferenceContext*, TF_Status*);
template void shapes_of_rows<1>(TF_ShapeInferenceContext*, TF_Status*);

void shapes_of_alltoall(TF_ShapeInferenceContext* context, TF_Status* status) {
  shape_of_rows(context, 0, status);
  const Shape numbers(api().ShapeInferenceContextVectorFromSize(context, kUnknownExtent));
  if (ok(status)) api().ShapeInferenceContextSetOutput(context, 1, numbers, status);
}

void shape_of_number(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape number(api().ShapeInferenceContextScalar(context));
  api().ShapeInferenceContextSetOutput(context, 0, number, status);
}

void shapes_of_nothing(TF_ShapeInferenceContext*, TF_Status*) {}

}  // namespace hvdlite::tensorflow
