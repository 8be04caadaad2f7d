#include "base/error.h"

namespace hvdlite::base {

void check_failed(const char* file, int line, const char* condition) {
  throw Error(ErrorCode::kInternal, std::string("hvdlite internal error at ") + file + ":" +
                                        std::to_string(line) + ": expected " + condition +
                                        "; this is a bug of hvdlite, please report it");
}

}  // namespace hvdlite::base
