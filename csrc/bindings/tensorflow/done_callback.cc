#include "done_callback.h"

#include "plausible.h"

namespace hvdlite::tensorflow {
namespace {

constexpr int kDestroy = 3;  // libstdc++'s std::_Manager_operation::__destroy_functor

}  // namespace

std::optional<DoneCallback> DoneCallback::take_checked(TF_AsyncOpKernelDoneCallback* callback) {
  const auto* function = reinterpret_cast<const Function*>(callback);
  if (!is_code(reinterpret_cast<const void*>(function->manage)) ||
      !is_code(reinterpret_cast<const void*>(function->invoke))) {
    return std::nullopt;
  }
  return take(callback);
}

// As std::function's move constructor: the stored object may be copied byte by byte, or the storage is a pointer to it.
DoneCallback DoneCallback::take(TF_AsyncOpKernelDoneCallback* callback) {
  return DoneCallback(std::exchange(*reinterpret_cast<Function*>(callback), Function{}));
}

DoneCallback::~DoneCallback() {
  if (function_.manage != nullptr) function_.manage(&function_, &function_, kDestroy);
}

}  // namespace hvdlite::tensorflow
