// How an asynchronous kernel tells TensorFlow that it is done.
// Thread: made in the kernel's compute, called once by any thread. Owns: what TensorFlow bound to the callback. Blocks: while
// TensorFlow schedules what comes next. Throws: nothing.
//
// TensorFlow passes compute the address of a std::function<void()> that is destroyed when compute returns, and the C API has no
// function that keeps it. So this class moves the function's content out. This depends on the layout of libstdc++'s
// std::function: 16 bytes of storage, the manager, the invoker. The layout is written out here instead of using std::function,
// because TensorFlow's C++ library may differ from the one that this file is compiled with. take_checked() first checks that
// the content can be a std::function. Before any collective relies on the layout, the self-test (self_test.cc) calls a callback
// that take_checked() has moved.
#pragma once

#include <optional>
#include <utility>

#include "tf_api.h"

namespace hvdlite::tensorflow {

class DoneCallback {
 public:
  // Moves TensorFlow's callback into this object. Returns nothing, and leaves the callback alone, if its layout is unexpected.
  static std::optional<DoneCallback> take_checked(TF_AsyncOpKernelDoneCallback* callback);
  // The same without checks, after the self-test has passed.
  static DoneCallback take(TF_AsyncOpKernelDoneCallback* callback);

  DoneCallback() = default;
  DoneCallback(DoneCallback&& other) noexcept
      : function_(std::exchange(other.function_, Function{})) {}
  DoneCallback& operator=(DoneCallback&&) = delete;
  ~DoneCallback();

  void operator()() const { function_.invoke(&function_); }

 private:
  struct Function {
    void* storage[2] = {};
    bool (*manage)(void* to, const void* from, int operation) = nullptr;
    void (*invoke)(const void* function) = nullptr;
  };
  explicit DoneCallback(const Function& function) : function_(function) {}

  Function function_;
};

}  // namespace hvdlite::tensorflow
