// In which order the engine's parts learn of a new set, and forget a removed one:
//
//    add_set       Execution ──► SetDirectory (callers) ──► Membership ──► PointToPoint
//    remove_set    SetDirectory ──► Numbering ──► Membership ──► PointToPoint ──► Execution
//
// A new set comes to Execution first: Execution makes the set's channel through shared memory. Only after that, share_memory()
// tells whether all members share memory, and SetDirectory stores this. A removal comes to SetDirectory first: from then on a
// caller's request for the set is refused inside the caller's call. An entry that is in the queue at that moment is refused
// later, when a pass admits it (kRemovedSet).
#include "engine/carrier.h"

namespace hvdlite::engine {

// The engine sends all control messages with this function, also those of Membership, so the counters count all of them.
// control_bytes_sent counts the bytes of the encoded messages.
void Carrier::send(int rank, const Message& message) {
  std::vector<std::byte> bytes = encode(message);
  ++shared_.counters.control_messages_sent;
  shared_.counters.control_bytes_sent += static_cast<std::int64_t>(bytes.size());
  transport_.send_message(rank, std::move(bytes));
}

std::unique_ptr<Agreement> Carrier::add_set(const ProcessSet& set, const Regions::Grant& regions) {
  std::unique_ptr<Agreement> port = execution_.add_set(set, regions);
  shared_.sets.add({set, execution_.share_memory(set.id)});
  membership_.add_set(set.id, set.members);
  point_to_point_.add_set(set);
  return port;
}

void Carrier::remove_set(SetId set) {
  shared_.sets.remove(set.id);
  shared_.numbering.forget(set);
  membership_.remove_set(set);
  point_to_point_.remove_set(set);
  execution_.remove_set(set);
}

}  // namespace hvdlite::engine
