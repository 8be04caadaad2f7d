// Errors of the engine and of TensorFlow's C API, on their way to the user.
// Thread: any. Owns: Status a TF_Status. Blocks: no. Throws: nothing.
#pragma once

#include "tf_api.h"

namespace hvdlite::tensorflow {

class Status {
 public:
  Status() : status_(api().NewStatus()) {}
  ~Status() { api().DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  operator TF_Status*() const { return status_; }
  bool ok() const { return api().GetCode(status_) == kOk; }
  const char* message() const { return api().Message(status_); }

 private:
  TF_Status* status_;
};

// Makes the op fail.
void fail(TF_OpKernelContext* context, StatusCode code, const char* message);
// With the code of a failed call of hvdlite.h, and its text.
void fail_with_last_error(TF_OpKernelContext* context, int code);

}  // namespace hvdlite::tensorflow
