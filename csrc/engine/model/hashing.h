// Functions for digest(), by which tests compare the states of the pure state machines Membership, Negotiation and
// PointToPoint.
// Thread: any. Owns: nothing. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <string_view>
#include <type_traits>
#include <vector>

#include "base/hash.h"
#include "engine/model/messages.h"

namespace hvdlite::engine {

// Hashes a message in its wire form.
inline void add_message(base::Hasher& hasher, const Message& message) {
  const std::vector<std::byte> bytes = encode(message);
  hasher.add_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// content_hash leaves out `absent` and `tag`. This function hashes them as well, because two states may differ only in these
// two fields.
inline void add_request(base::Hasher& hasher, const Request& request) {
  hasher.add(request.name_hash);
  hasher.add(request.content_hash);
  hasher.add_pair(request.absent ? 1 : 0, request.tag);
}

// Hashes a list in which a request may be null.
inline void add_requests(base::Hasher& hasher, const std::vector<RequestPtr>& requests) {
  hasher.add(requests.size());
  for (const RequestPtr& request : requests) {
    hasher.add(request != nullptr ? 1 : 0);
    if (request) add_request(hasher, *request);
  }
}

inline void add_status(base::Hasher& hasher, const base::Status& status) {
  hasher.add_signed(static_cast<std::int64_t>(status.code));
  hasher.add_text(status.message);
}

// Hashes the keys and values of a table whose order has no meaning. Calls add(hasher, value) for each value.
template <typename Table, typename Add>
void add_table(base::Hasher& hasher, const Table& table, Add add) {
  std::uint64_t sum = 0;
  for (const auto& [key, value] : table) {
    base::Hasher each;
    if constexpr (std::is_convertible_v<decltype(key), std::string_view>) {
      each.add_text(key);
    } else {
      each.add(static_cast<std::uint64_t>(key));
    }
    add(each, value);
    sum += each.value();
  }
  hasher.add(table.size());
  hasher.add(sum);
}

template <typename Ranks>
void add_ranks(base::Hasher& hasher, const Ranks& ranks) {
  hasher.add(ranks.size());
  for (const int rank : ranks) hasher.add_signed(rank);
}

}  // namespace hvdlite::engine
