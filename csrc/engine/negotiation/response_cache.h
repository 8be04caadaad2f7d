// What a member remembers of agreed operations: to repeat one, it sends a slot number instead of a full Request.
// Thread: the holder of the progress token. Owns: its known responses. Blocks: no. Throws: Error(Internal) on a slot that was
// never filled.
//
// The coordinator assigns slots and decides which of them it replaces. Members follow its responses, and all process them in
// one order. So after the same number of response lists, a slot means the same on every member. Together with its slots, a
// member sends the number of lists that it has processed. If a later list gives one of these slots to another name,
// the coordinator ignores the announcement of this slot. When the member follows that list, it announces again, in full
// (SetNegotiation::remember).
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
  // The slot of this request's name, if `request` equals the request that this rank had made when the slot was filled.
  std::optional<std::uint32_t> find(const Request& request) const;
  const ResponsePtr& at(std::uint32_t slot) const;
  // Fills the slot. The caller must check before that the slot is below the capacity, because the table grows to this slot.
  // mine: what this rank asked for; null if it did not ask. Returns the name that lost its slot, or "".
  std::string put(std::uint32_t slot, ResponsePtr response, RequestPtr mine);

  void add_to(base::Hasher& hasher) const;

 private:
  struct KnownResponse {
    ResponsePtr response;
    RequestPtr mine;
  };
  std::vector<KnownResponse> slots_;
  std::unordered_map<std::string, std::uint32_t> by_name_;
};

}  // namespace hvdlite::engine
