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
#include "outputs.h"
#include "shapes.h"

namespace hvdlite::tensorflow {
namespace {

std::atomic<bool>& async_flag() {
  static std::atomic<bool> flag = false;
  return flag;
}

void* create(TF_OpKernelConstruction*) { return nullptr; }

void compute(void*, TF_OpKernelContext* context) { give_number(context, 0); }

void compute_async(void*, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* callback) {
  std::optional<DoneCallback> done = DoneCallback::take_checked(callback);
  if (!done) {
    give_number(context, 0);
    api().RunAsyncOpKernelDoneCallback(callback);
    return;
  }
  std::thread([context, finish = std::move(*done)] {
    // So that compute has returned, most likely, and its stack is used for something else.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    give_number(context, 1);
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
