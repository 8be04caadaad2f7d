// In which order the engine's parts learn of a new set, and forget a removed one:
//
//    add_set       Execution ──► SetDirectory (callers) ──► Membership ──► PointToPoint
//    remove_set    SetDirectory ──► Numbering ──► Membership ──► PointToPoint ──► Execution
//
// Execution comes first because it makes the set's channels: share_memory() reads them to tell the directory whether the
// members share memory. At a removal the directory comes first: a later request of a caller is then refused inside the call. An
// entry that is in the queue at that moment is refused when it is admitted (kRemovedSet).
#include "engine/carrier.h"

namespace hvdlite::engine {

// All control messages of the engine leave here, also those of Membership, so the counters miss none. They count the encoded
// bytes.
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
