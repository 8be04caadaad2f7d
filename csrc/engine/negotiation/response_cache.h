// What a member remembers of agreed operations, so that repeating one takes a slot number instead of a full Request.
// Thread: the holder of the progress token. Owns: its lines. Blocks: no. Throws: Error(Internal) on a slot never filled.
//
// The coordinator assigns slots and decides what is replaced; members only follow its responses, which all of them process
// in one order, so a slot means the same everywhere as of the same response sequence number. A member tells that number with
// its slots; the coordinator ignores a slot that was refilled later than that, and the member, seeing the line replaced while
// its announcement was under way, announces again in full (SetNegotiation::remember).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

class ResponseCache {
 public:
  // The slot under which this very request, as this rank last made it, was agreed.
  std::optional<std::uint32_t> find(const Request& request) const;
  const ResponsePtr& at(std::uint32_t slot) const;
  // Fills the slot; mine is what this rank asked (null if it had joined). Returns the name that lost its line, or "".
  std::string put(std::uint32_t slot, ResponsePtr response, RequestPtr mine);

  void add_to(base::Hasher& hasher) const;

 private:
  struct KnownResponse {
    ResponsePtr response;
    RequestPtr mine;
  };
  std::vector<KnownResponse> lines_;
  std::unordered_map<std::string, std::uint32_t> by_name_;
};

}  // namespace hvdlite::engine
