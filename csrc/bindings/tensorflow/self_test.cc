#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "done_callback.h"
#include "gpu_stream.h"
#include "hvdlite/hvdlite.h"
#include "op_definition.h"
#include "ops.h"
#include "outputs.h"
#include "shapes.h"
#include "status.h"

namespace hvdlite::tensorflow {
namespace {

std::atomic<bool>& async_flag() {
  static std::atomic<bool> flag = false;
  return flag;
}

void compute_probe(void*, TF_OpKernelContext* context) { give_number(context, 0); }

void compute_probe_later(void*, TF_OpKernelContext* context,
                         TF_AsyncOpKernelDoneCallback* callback) {
  std::optional<DoneCallback> done = DoneCallback::take_checked(callback);
  if (!done) {
    give_number(context, 0);
    api().RunAsyncOpKernelDoneCallback(callback);
    return;
  }
  std::thread([context, finish = std::move(*done)] {
    // Time for compute to return, so that most likely its stack is used for something else.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    give_number(context, 1);
    finish();
  }).detach();
}

struct StreamTest {
  float expected = 0;
  std::string cuda_library;
};

void* create_stream_test(TF_OpKernelConstruction* construction) {
  auto test = std::make_unique<StreamTest>();
  const TfStatus status;
  std::int64_t bits = 0;
  std::int32_t list_size = 0, size = 0;
  api().OpKernelConstruction_GetAttrInt64(construction, "expected_bits", &bits, status);
  api().OpKernelConstruction_GetAttrSize(construction, "cuda_library", &list_size, &size, status);
  test->expected = std::bit_cast<float>(static_cast<std::int32_t>(bits));
  test->cuda_library.resize(static_cast<std::size_t>(size));
  api().OpKernelConstruction_GetAttrString(construction, "cuda_library", test->cuda_library.data(),
                                           test->cuda_library.size(), status);
  if (!status.ok()) api().OpKernelConstruction_Failure(construction, status);
  return test.release();
}

void compute_stream_test(void* kernel, TF_OpKernelContext* context) {
  const auto& test = *static_cast<const StreamTest*>(kernel);
  void* stream = checked_gpu_stream_of(context);
  if (stream == nullptr) return give_number(context, -1);
  const TfStatus status;
  TF_Tensor* input = nullptr;
  api().GetInput(context, 0, &input, status);
  if (!status.ok()) return api().OpKernelContext_Failure(context, status);
  float number = 0;
  int busy = 0;
  const int code = hvdlite_gpu_read(test.cuda_library.c_str(), api().TensorData(input), &number,
                                    sizeof(number), stream, &busy);
  api().DeleteTensor(input);
  if (code != HVDLITE_OK) return fail_with_last_error(context, code);
  give_number(context, number == test.expected ? busy : -2);
}

void destroy_stream_test(void* kernel) { delete static_cast<StreamTest*>(kernel); }

}  // namespace

bool async_works() { return async_flag().load(std::memory_order_relaxed); }

void register_self_tests() {
  OpDefinition async("HvdliteSelfTest", true, shape_of_number);
  async.output("value", "int32").enroll({nullptr, compute_probe, compute_probe_later, nullptr});
  OpDefinition stream("HvdliteStreamSelfTest", true, shape_of_number);
  stream.attribute("expected_bits: int").attribute("cuda_library: string");
  stream.input("value", "float").output("verdict", "int32", ArgumentMemory::kHost);
  stream.enroll_for_gpu_memory(
      {nullptr, compute_stream_test, nullptr, destroy_stream_test, create_stream_test});
}

}  // namespace hvdlite::tensorflow

extern "C" HVDLITE_API void hvdlite_tensorflow_use_async(int use) {
  hvdlite::tensorflow::async_flag().store(use != 0);
}
