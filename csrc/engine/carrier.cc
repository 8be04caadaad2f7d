#include "engine/carrier.h"

namespace hvdlite::engine {

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
