// How long the thread that made a pass may sleep if the pass did nothing, and how long submitted entries wait for later ones.
// Pure functions, which Engine and Cycle call.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include "base/thread.h"
#include "engine/intake/tensor_queue.h"

namespace hvdlite::engine {

// The state of the engine after a pass.
struct Outlook {
  bool moving_data = false;    // operations are in flight
  bool gpu_at_work = false;    // a GPU has work that it has not done
  bool negotiating = false;    // an operation of this rank is not agreed or not matched
  bool watching = false;       // Membership::watching()
  base::microseconds idle{0};  // the time since anything happened
  // After this time queued entries are announced, or a step that a port has refused is tried again
  // (pause_before_trying_again). 0: neither is due.
  base::microseconds due{0};
};

// The longest sleep after a pass that did nothing; a ring of the doorbell ends the sleep early. bells_reach_all: every rank can
// ring this rank's bell.
base::microseconds longest_sleep(const Outlook& outlook, bool bells_reach_all);

// A port (Agreement in negotiation/agreement.h) may refuse a step of Negotiation (Negotiation::tries_again). This is how long
// to wait before the step is tried again. idle: for how long nothing has happened.
base::microseconds pause_before_trying_again(base::microseconds idle);

// How long submitted entries wait for later ones, in a job of this many ranks.
Patience patience_of(double cycle_time_ms, int ranks);

}  // namespace hvdlite::engine
