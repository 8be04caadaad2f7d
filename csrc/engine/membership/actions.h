// What Membership and FailureDetector want done. Their driver carries the actions out in order.
// Thread: plain values. Owns: their content. Blocks: no. Throws: no.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "engine/model/messages.h"

namespace hvdlite::engine {

// The machines derive from this struct, so that each of them offers these names as its own.
struct MembershipActions {
  // Send a message to a rank, which may be this one.
  struct Send {
    int to = 0;
    Message message;
  };
  // This rank is about to fail for this cause. Write the cause to shared memory for this host, and send a Failure to these
  // ranks.
  struct Announce {
    std::string cause;
    std::vector<int> ranks;
  };
  // Send a Failure to these ranks, which cannot see the failure themselves.
  struct Warn {
    std::string cause;
    std::vector<int> ranks;
  };
  // End all operations of this rank with this status. told: the user knows it already.
  struct Fail {
    base::Status why;
    bool told = false;
  };
  // The rank takes part in no later operation. Operations that need it fail with this status.
  struct Left {
    int rank = 0;
    base::Status why;
  };
  // This rank has left. The coordinator will not decide the operations that this rank still waits for.
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
