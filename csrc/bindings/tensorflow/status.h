// Errors of the engine and of TensorFlow's C API, reported to the user.
// Thread: any. Owns: TfStatus owns a TF_Status. Blocks: no. Throws: nothing.
#pragma once

#include "tf_api.h"

namespace hvdlite::tensorflow {

class TfStatus {
 public:
  TfStatus() : status_(api().NewStatus()) {}
  ~TfStatus() { api().DeleteStatus(status_); }
  TfStatus(const TfStatus&) = delete;
  TfStatus& operator=(const TfStatus&) = delete;

  operator TF_Status*() const { return status_; }
  bool ok() const { return api().GetCode(status_) == kOk; }

 private:
  TF_Status* status_;
};

// Sets the code and the text of a failed call of hvdlite.h.
void set_last_error(TF_Status* status, int code);
// Makes the op fail.
void fail(TF_OpKernelContext* context, StatusCode code, const char* message);
// Fails the op with the code and the text of a failed call of hvdlite.h.
void fail_with_last_error(TF_OpKernelContext* context, int code);

}  // namespace hvdlite::tensorflow
