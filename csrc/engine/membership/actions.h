// The actions that Membership and FailureDetector ask of their driver, which carries them out in order.
// Thread: plain values. Owns: their content. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "engine/model/messages.h"

namespace hvdlite::engine {

// Membership and FailureDetector derive from this struct, so that each offers these names as its own (Membership::Send).
struct MembershipActions {
  // Send a message to a rank, which may be this one.
  struct Send {
    int to = 0;
    Message message;
  };
  // This rank is about to fail for this cause. Send a Failure to these ranks. A driver with an engine first writes the cause to
  // shared memory, if there is any. The ranks of this host find the cause there even if no message of this rank arrives.
  struct Announce {
    std::string cause;
    std::vector<int> ranks;
  };
  // This rank has lost a rank of its own host. Send a Failure to these ranks of other hosts, which may not see that loss.
  struct Warn {
    std::string cause;
    std::vector<int> ranks;
  };
  // This rank has failed: all its operations, later ones too, end with this status. Only the first Fail counts. told: the user
  // knows the cause already, so write no log line.
  struct Fail {
    base::Status why;
    bool told = false;
  };
  // This other rank takes part in no later operation. Operations that need that rank fail with this status.
  struct Left {
    int rank = 0;
    base::Status why;
  };
  // This rank has left, and the coordinator decides no further operation in which this rank takes part. End the operations for
  // which this rank still waits in the coordinator's sets.
  struct Undecided {
    int coordinator = 0;
  };
  // Write a log line. A driver without an engine writes none.
  struct Log {
    base::LogLevel level = base::LogLevel::kInfo;
    std::string text;
  };
  using Action = std::variant<Send, Announce, Warn, Fail, Left, Undecided, Log>;
  using Actions = std::vector<Action>;

  static void append(Actions& to, Actions more) { std::ranges::move(more, std::back_inserter(to)); }
};

}  // namespace hvdlite::engine
