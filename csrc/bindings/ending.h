// What every binding does at the end of a work of hvdlite.h.
// Thread: any. Owns: nothing. Blocks: wait_for_end. Throws: nothing.
#pragma once

#include "hvdlite/hvdlite.h"

namespace hvdlite {

// Is the memory of an operation that ended with this code free again? After any other failure than these the transport may
// still write to it: the binding has to keep it for good.
constexpr bool memory_is_free(int code) {
  return code == HVDLITE_OK || code == HVDLITE_E_INVALID_ARGUMENT || code == HVDLITE_E_MISMATCH ||
         code == HVDLITE_E_UNSUPPORTED || code == HVDLITE_E_TIMEOUT;
}

// Waits as long as it takes; an operation that cannot end is ended by the engine. The code of the first that failed.
inline int wait_for_end(hvdlite_engine* engine, int64_t work) {
  constexpr double kLongWait = 3600;  // seconds
  for (int done = 0;;) {
    const int code = hvdlite_wait(engine, &work, 1, kLongWait, &done);
    if (done != 0 || code != HVDLITE_OK) return code;
  }
}

}  // namespace hvdlite
