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
