#include <cstdint>
#include <cstring>
#include <string>

#include "hvdlite/hvdlite.h"
#include "op_definition.h"
#include "ops.h"
#include "outputs.h"
#include "shapes.h"
#include "status.h"

namespace hvdlite::tensorflow {
namespace {

// The bytes of an input. If there is an error, `status` has it, and there are no bytes.
std::string bytes_of_input(TF_OpKernelContext* context, int index, std::size_t element,
                           TF_Status* status) {
  TF_Tensor* input = nullptr;
  api().GetInput(context, index, &input, status);
  if (api().GetCode(status) != kOk) return {};
  std::size_t bytes = element;
  for (int i = 0; i < api().NumDims(input); ++i)
    bytes *= static_cast<std::size_t>(api().Dim(input, i));
  std::string found;
  if (bytes > 0) found.assign(static_cast<const char*>(api().TensorData(input)), bytes);
  api().DeleteTensor(input);
  return found;
}

void compute_outcome(void*, TF_OpKernelContext* context) {
  const TfStatus status;
  std::int32_t code = HVDLITE_E_INTERNAL;
  const std::string number = bytes_of_input(context, 0, sizeof(code), status);
  if (!status.ok()) return api().OpKernelContext_Failure(context, status);
  const std::string text = bytes_of_input(context, 1, 1, status);
  if (!status.ok()) return api().OpKernelContext_Failure(context, status);
  if (number.size() == sizeof(code)) std::memcpy(&code, number.data(), sizeof(code));
  if (code == HVDLITE_OK) return give_number(context, 0);
  fail(context, status_code_of(code), text.c_str());
}

}  // namespace

void register_outcome() {
  // The op is stateful; otherwise TensorFlow would leave it out if nothing uses its output.
  OpDefinition outcome("HvdliteOutcome", true, shape_of_number);
  outcome.input("code", "int32").input("text", "uint8").output("value", "int32");
  outcome.enroll({nullptr, compute_outcome, nullptr, nullptr});
}

}  // namespace hvdlite::tensorflow
