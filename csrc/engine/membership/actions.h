// What the machines of this room want done. The driver carries actions out in their order.
// Thread: plain values. Owns: their content. Blocks: no. Throws: no.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "engine/model/messages.h"

namespace hvdlite::engine {

// A base of the machines, so that each offers these names as its own.
struct MembershipActions {
  // A message to a rank, which may be this one.
  struct Send {
    int to = 0;
    Message message;
  };
  // This rank is about to fail for this cause: its host sees it in shared memory, a Failure tells these ranks.
  struct Announce {
    std::string cause;
    std::vector<int> ranks;
  };
  // A Failure for these ranks, which do not see for themselves what has happened.
  struct Warn {
    std::string cause;
    std::vector<int> ranks;
  };
  // Everything here ends with this. told: the user knows already.
  struct Fail {
    base::Status why;
    bool told = false;
  };
  // The rank takes part in nothing more: what needs it fails with this.
  struct Left {
    int rank = 0;
    base::Status why;
  };
  // What this rank, leaving, still waited for of this coordinator is never decided.
  struct Undecided {
    int coordinator = 0;
  };
  struct Log {
    base::LogLevel level = base::LogLevel::kInfo;
    std::string text;
  };
  using Action = std::variant<Send, Announce, Warn, Fail, Left, Undecided, Log>;
  using Actions = std::vector<Action>;
};

}  // namespace hvdlite::engine
