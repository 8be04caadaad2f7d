#include "engine/negotiation/response_cache.h"

namespace hvdlite::engine {

std::optional<std::uint32_t> ResponseCache::find(const Request& request) const {
  const auto found = by_name_.find(request.name);
  if (found == by_name_.end()) return std::nullopt;
  const RequestPtr& mine = lines_[found->second].mine;
  if (!mine || !(*mine == request)) return std::nullopt;
  return found->second;
}

const ResponsePtr& ResponseCache::at(std::uint32_t slot) const {
  HVD_CHECK(slot < lines_.size() && lines_[slot].response);
  return lines_[slot].response;
}

std::string ResponseCache::put(std::uint32_t slot, ResponsePtr response, RequestPtr mine) {
  if (slot >= lines_.size()) lines_.resize(slot + 1);
  KnownResponse& line = lines_[slot];
  std::string lost;
  if (line.response && line.response->request->name != response->request->name) {
    lost = line.response->request->name;
    by_name_.erase(lost);
  }
  by_name_[response->request->name] = slot;
  line = {std::move(response), std::move(mine)};
  return lost;
}

}  // namespace hvdlite::engine
