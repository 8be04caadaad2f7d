#include "status.h"

#include "hvdlite/hvdlite.h"

namespace hvdlite::tensorflow {

void set_last_error(TF_Status* status, int code) {
  api().SetStatus(status, status_code_of(code), hvdlite_last_error());
}

void fail(TF_OpKernelContext* context, StatusCode code, const char* message) {
  const TfStatus status;
  api().SetStatus(status, code, message);
  api().OpKernelContext_Failure(context, status);
}

void fail_with_last_error(TF_OpKernelContext* context, int code) {
  const TfStatus status;
  set_last_error(status, code);
  api().OpKernelContext_Failure(context, status);
}

}  // namespace hvdlite::tensorflow
