#include "self_test.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "done_callback.h"
#include "hvdlite/hvdlite.h"
#include "op_definition.h"
#include "shapes.h"
#include "status.h"

namespace hvdlite::tensorflow {
namespace {

std::atomic<bool>& async_flag() {
  static std::atomic<bool> flag = false;
  return flag;
}

void give(TF_OpKernelContext* context, std::int32_t value) {
  const Status status;
  constexpr DataType kInt32 = 3;
  TF_Tensor* output = api().AllocateOutput(context, 0, kInt32, nullptr, 0, sizeof value, status);
  if (!status.ok()) {
    api().OpKernelContext_Failure(context, status);
    return;
  }
  *static_cast<std::int32_t*>(api().TensorData(output)) = value;
  api().DeleteTensor(output);
}

void* create(TF_OpKernelConstruction*) { return nullptr; }

void compute(void*, TF_OpKernelContext* context) { give(context, 0); }

void compute_async(void*, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* callback) {
  std::optional<DoneCallback> done = DoneCallback::take_checked(callback);
  if (!done) {
    give(context, 0);
    api().RunAsyncOpKernelDoneCallback(callback);
    return;
  }
  std::thread([context, finish = std::move(*done)] {
    // So that compute has returned, most likely, and its stack is used for something else.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    give(context, 1);
    finish();
  }).detach();
}

void destroy(void*) {}

}  // namespace

bool async_works() { return async_flag().load(std::memory_order_relaxed); }

void register_self_test() {
  OpDefinition definition("HvdliteSelfTest", true, shape_of_number);
  definition.output("value", "int32").enroll({create, compute, compute_async, destroy});
}

}  // namespace hvdlite::tensorflow

extern "C" HVDLITE_API void hvdlite_tensorflow_use_async(int use) {
  hvdlite::tensorflow::async_flag().store(use != 0);
}
