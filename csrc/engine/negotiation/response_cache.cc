// slots_ has the contents, by slot number; by_name_ has the slot of each name. A name has at most one slot, because the
// coordinator gives a changed request the name's old slot (Coordinator::slot_for).
//
//    slot    response              mine
//    0       allreduce.conv1       what this rank asked        find() returns 0 for an equal request
//    1       allreduce.conv2       what this rank asked before it changed the shape: find() returns no slot for the new
//                                  request. So this request travels in full, and put() fills slot 1 again
//
// find() compares with this rank's own request, and not with the agreed one, which may differ in rows, device or arena. When
// this member announces the slot number, the coordinator counts the request that the member had made when the slot was filled
// (AssignedSlot::requests).
#include "engine/negotiation/response_cache.h"

namespace hvdlite::engine {

std::optional<std::uint32_t> ResponseCache::find(const Request& request) const {
  const auto found = by_name_.find(request.name);
  if (found == by_name_.end()) return std::nullopt;
  const RequestPtr& mine = slots_[found->second].mine;
  if (!mine || !(*mine == request)) return std::nullopt;
  return found->second;
}

const ResponsePtr& ResponseCache::at(std::uint32_t slot) const {
  HVD_CHECK(slot < slots_.size() && slots_[slot].response);
  return slots_[slot].response;
}

// If the slot had another name, that name leaves by_name_. If it stayed, by_name_ would grow with each new name.
std::string ResponseCache::put(std::uint32_t slot, ResponsePtr response, RequestPtr mine) {
  if (slot >= slots_.size()) slots_.resize(slot + 1);
  KnownResponse& known = slots_[slot];
  std::string lost;
  if (known.response && known.response->request->name != response->request->name) {
    lost = known.response->request->name;
    by_name_.erase(lost);
  }
  by_name_[response->request->name] = slot;
  known = {std::move(response), std::move(mine)};
  return lost;
}

}  // namespace hvdlite::engine
