// For how long whoever makes the passes may sleep after one that did nothing. Pure.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include "base/thread.h"
#include "engine/intake/tensor_queue.h"

namespace hvdlite::engine {

// What the token holder may expect after a pass that did nothing.
struct Outlook {
  bool moving_data = false;    // operations are in flight
  bool gpu_at_work = false;    // a GPU has not done all it was given
  bool negotiating = false;    // something submitted here is not agreed
  bool watching = false;       // a deadlock is being looked into
  base::microseconds idle{0};  // how long nothing has happened
  base::microseconds due{0};   // > 0: queued entries will be announced then
};

// A ring of the doorbell ends the sleep early. bells_reach_all: every rank can ring this one.
base::microseconds longest_sleep(const Outlook& outlook, bool bells_reach_all);

// Something could not be done because another rank was at it, and nothing has happened for so long: it is tried again after that.
base::microseconds pause_before_trying_again(base::microseconds idle);

// How long what has been submitted waits for company in a job of so many ranks.
Patience patience_of(double cycle_time_ms, int ranks);

}  // namespace hvdlite::engine
