// Every interleaving of a small negotiation in shared memory.
// Thread: any. Owns: nothing. Blocks: while it explores. Throws: Error(Internal) telling what went wrong, Error(InvalidArgument).
//
// Members with short programs, the ledger they share, and a coordinator are stepped in all possible orders, as long as that
// leads to states not seen before. A step is what really happens at once: one announcement (in one hold of the lock), one
// entry of the log read, one message delivered. What members and coordinator do is what SetNegotiation and Coordinator do, reduced to
// masks.
//
// Checked in every state: all members do the same in the same order. In every state without a next step: whatever every
// member asked for was done by every member, and the table holds what is asked for and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvdlite::testing {

// A program for each of up to 3 members, and how often a verdict may close the ledger. Letters ask for a tensor (capitals with
// another content), + joins, . leaves; member 0 coordinates. broken_rule: 0, or the number of a rule of the ledger to break.
// Gives how many different states there are.
std::int64_t explore_ledger(const std::vector<std::string>& programs, int closings,
                            int broken_rule);

}  // namespace hvdlite::testing
