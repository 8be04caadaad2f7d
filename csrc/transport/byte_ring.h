// A ring of bytes in memory. One rank writes it and another rank reads it, without a lock. It has a head, in which the two
// ranks count their bytes, and data. The *place* of a byte is the number of bytes that were written before it since the ring
// was created. The byte lies in the data at the offset place modulo capacity.
// Thread: as the code that uses it says. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace hvdlite::transport {

template <typename Head>
struct ByteRing {
  Head* head;
  std::byte* data;
  std::size_t capacity;  // of the data; a power of two

  static constexpr std::size_t bytes_for(std::size_t capacity) { return sizeof(Head) + capacity; }
  // A ring whose memory is all zero is empty.
  ByteRing(std::byte* memory, std::size_t its_capacity)
      : head(reinterpret_cast<Head*>(memory)),
        data(memory + sizeof(Head)),
        capacity(its_capacity) {}

  void copy_in(std::uint64_t place, std::span<const std::byte> bytes) const {
    const std::size_t offset = place & (capacity - 1);
    const std::size_t first = std::min(bytes.size(), capacity - offset);
    std::memcpy(data + offset, bytes.data(), first);
    if (first < bytes.size()) std::memcpy(data, bytes.data() + first, bytes.size() - first);
  }
  void copy_out(std::uint64_t place, std::span<std::byte> bytes) const {
    const std::size_t offset = place & (capacity - 1);
    const std::size_t first = std::min(bytes.size(), capacity - offset);
    std::memcpy(bytes.data(), data + offset, first);
    if (first < bytes.size()) std::memcpy(bytes.data() + first, data, bytes.size() - first);
  }
};

}  // namespace hvdlite::transport
