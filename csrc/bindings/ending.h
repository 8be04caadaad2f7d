// The end of a work of hvdlite.h, as every binding handles it.
// Thread: any. Owns: nothing. Blocks: wait_for_end. Throws: nothing.
#pragma once

#include "hvdlite/hvdlite.h"

namespace hvdlite {

// May a binding free the memory of an operation that has ended with this code? If not, the transport may still write to the
// memory, and the binding must keep the memory for ever.
constexpr bool memory_is_free(int code) {
  return code == HVDLITE_OK || code == HVDLITE_E_INVALID_ARGUMENT || code == HVDLITE_E_MISMATCH ||
         code == HVDLITE_E_UNSUPPORTED || code == HVDLITE_E_TIMEOUT;
}

// Waits without a limit; the engine ends operations that can never complete. Returns the code of the first failure.
inline int wait_for_end(hvdlite_engine* engine, int64_t work) {
  constexpr double kLongWait = 3600;  // seconds
  for (int done = 0;;) {
    const int code = hvdlite_wait(engine, &work, 1, kLongWait, &done);
    if (done != 0 || code != HVDLITE_OK) return code;
  }
}

}  // namespace hvdlite
