#include "status.h"

#include "hvdlite/hvdlite.h"

namespace hvdlite::tensorflow {

void fail(TF_OpKernelContext* context, StatusCode code, const char* message) {
  const TfStatus status;
  api().SetStatus(status, code, message);
  api().OpKernelContext_Failure(context, status);
}

void fail_with_last_error(TF_OpKernelContext* context, int code) {
  fail(context, status_code_of(code), hvdlite_last_error());
}

}  // namespace hvdlite::tensorflow
