#include "status.h"

#include "hvdlite/hvdlite.h"

namespace hvdlite::tensorflow {

StatusCode status_of(int code) {
  switch (code) {
    case HVDLITE_OK:
      return kOk;
    case HVDLITE_E_INVALID_ARGUMENT:
      return kInvalidArgument;
    case HVDLITE_E_MISMATCH:
    case HVDLITE_E_NOT_INITIALIZED:
      return kFailedPrecondition;
    case HVDLITE_E_PEER_LOST:
    case HVDLITE_E_ABORTED:
      return kAborted;
    case HVDLITE_E_TIMEOUT:
      return kDeadlineExceeded;
    case HVDLITE_E_UNSUPPORTED:
      return kUnimplemented;
    case HVDLITE_E_SYSTEM:
      return kUnknown;
    default:
      return kInternal;
  }
}

void fail(TF_OpKernelContext* context, StatusCode code, const char* message) {
  const Status status;
  api().SetStatus(status, code, message);
  api().OpKernelContext_Failure(context, status);
}

void fail_with_last_error(TF_OpKernelContext* context, int code) {
  fail(context, status_of(code), hvdlite_last_error());
}

}  // namespace hvdlite::tensorflow
