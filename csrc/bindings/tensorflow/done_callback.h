// How an asynchronous kernel tells TensorFlow that it is done.
// Thread: made in the kernel's compute, called once by any thread. Owns: what TensorFlow bound to the callback. Blocks: while
// TensorFlow schedules what comes next. Throws: nothing.
//
// TensorFlow hands compute the address of its own by-value parameter, a std::function<void()> that is dead once compute has
// returned; the C API has no way to keep it. So its content is moved out of there, which rests on the layout of libstdc++'s
// std::function: 16 bytes of storage, the manager, the invoker. The layout is spelt out here instead of using std::function,
// because it is that of TensorFlow's C++ library and not of the one that this file is compiled with. take() looks first whether
// the content can be one, and self_test.cc tries it before any collective relies on it.
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
