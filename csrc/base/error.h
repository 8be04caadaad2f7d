// The one exception type of the native code, and the codes that cross the C ABI.
// Thread: any. Blocks: no. A Status takes the place of an exception where one thread gives a result to another thread (the
// completion of a Handle).
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "base/types.h"

namespace hvdlite::base {

// Same numbers as HVDLITE_E_* in hvdlite.h and ErrorCode in hvdlite/errors.py (a test compares).
enum class ErrorCode : int {
  kOk = 0,
  kInvalidArgument = 1,  // the caller's argument is wrong; nothing was sent
  kMismatch = 2,         // ranks disagree about one operation; the engine stays usable
  kPeerLost = 3,         // a rank died or raised
  kTimeout = 4,          // ranks wait for each other for ever, or for longer than a limit
  kAborted = 5,          // a rank that is needed has left, or this one has shut down
  kNotInitialized = 6,
  kUnsupported = 7,
  kSystem = 8,    // the operating system or MPI refused
  kInternal = 9,  // a bug of hvdlite
};
inline constexpr int kNumErrorCodes = 10;

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

struct Status {
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  SetId set = {};  // of the operation that ended so
  bool ok() const { return code == ErrorCode::kOk; }
};

// Throws Error(Internal), whose text says that this is a bug of hvdlite. So HVD_CHECK must not check a user's input.
[[noreturn]] void check_failed(const char* file, int line, const char* condition);

}  // namespace hvdlite::base

#define HVD_CHECK(condition)                                                         \
  do {                                                                               \
    if (!(condition)) ::hvdlite::base::check_failed(__FILE__, __LINE__, #condition); \
  } while (false)
