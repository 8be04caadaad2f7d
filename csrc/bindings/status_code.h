// The canonical status code (absl's, which TensorFlow and XLA share) for an error code of hvdlite.h, from the table in
// hvdlite/errors.py.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include "hvdlite/hvdlite.h"

namespace hvdlite {

enum StatusCode : int {
  kOk = 0,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
};

constexpr StatusCode status_code_of(int error) {
  switch (error) {
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

}  // namespace hvdlite
