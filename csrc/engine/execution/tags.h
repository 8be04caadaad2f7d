// The tags of what the transport moves for the engine.
// Thread: pure functions, any. Owns: nothing. Blocks: no. Throws: no.
#pragma once

#include <cstdint>

#include "collectives/comm.h"
#include "engine/model/request.h"
#include "transport/transport.h"

namespace hvdlite::engine {

// From the low end: channel, operation number (modulo), process set.
inline constexpr int kSetBits = 10;

inline int operation_bits(const transport::Transport& transport) {
  return transport.tag_bits() - collectives::kChannelBits - kSetBits;
}
// Operations have the numbers below this one.
inline std::uint32_t last_operation(const transport::Transport& transport) {
  return (std::uint32_t{1} << operation_bits(transport)) - 1;
}

inline std::uint32_t tag_of(const transport::Transport& transport, SetId set,
                            std::uint32_t operation) {
  const auto slot = static_cast<std::uint32_t>(set.id) & ((std::uint32_t{1} << kSetBits) - 1);
  return ((slot << operation_bits(transport)) | (operation % last_operation(transport)))
         << collectives::kChannelBits;
}

// That of all that ranks send one another, in the order in which both start it: no operation has it.
inline std::uint32_t point_to_point_tag(const transport::Transport& transport) {
  return last_operation(transport) << collectives::kChannelBits;
}

}  // namespace hvdlite::engine
