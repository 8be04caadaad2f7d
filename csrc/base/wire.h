// Bytes that travel between ranks: a writer, and a reader that checks bounds. Native byte order (all ranks of a job share one
// architecture).
// Thread: one object, one thread. Owns: the writer its buffer, the reader nothing. Blocks: no.
// Throws: the reader throws Error(Internal) if a message is shorter than its content claims, or holds a value that its enum
// does not have. It never reads past the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace hvdlite::base {

class Writer {
 public:
  Writer() { buffer_.reserve(kUsual); }

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void put(const T& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    buffer_.insert(buffer_.end(), bytes, bytes + sizeof(T));
  }
  void put_string(const std::string& text) { put_bytes(std::as_bytes(std::span(text))); }
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void put_vector(const std::vector<T>& values) {
    put(static_cast<std::uint32_t>(values.size()));
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    buffer_.insert(buffer_.end(), bytes, bytes + values.size() * sizeof(T));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    put(static_cast<std::uint32_t>(bytes.size()));
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> take() { return std::move(buffer_); }

 private:
  // Most messages are smaller, and so take one allocation.
  static constexpr std::size_t kUsual = 256;

  std::vector<std::byte> buffer_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  // An enum that was sent as a byte and has the values 0 to limit - 1.
  template <typename Enum>
  Enum get_enum(int limit, const char* what) {
    const auto code = get<std::uint8_t>();
    if (code >= limit) {
      throw Error(ErrorCode::kInternal, std::string("a control message holds an unknown ") + what +
                                            " " + std::to_string(code));
    }
    return static_cast<Enum>(code);
  }
  std::string get_string() {
    const auto length = get<std::uint32_t>();
    return {reinterpret_cast<const char*>(take(length)), length};
  }
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  std::vector<T> get_vector() {
    const auto count = get<std::uint32_t>();
    const std::byte* bytes = take(std::size_t{count} * sizeof(T));
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), bytes, std::size_t{count} * sizeof(T));
    return values;
  }
  // Reads bytes without copying them: the result refers to the message, which must outlive it.
  std::span<const std::byte> get_bytes() {
    const auto count = get<std::uint32_t>();
    return {take(count), count};
  }
  bool empty() const { return rest_.empty(); }

 private:
  const std::byte* take(std::size_t count) {
    if (count > rest_.size()) {
      throw Error(ErrorCode::kInternal, "a control message is truncated: " + std::to_string(count) +
                                            " bytes wanted, " + std::to_string(rest_.size()) +
                                            " left");
    }
    const std::byte* start = rest_.data();
    rest_ = rest_.subspan(count);
    return start;
  }

  std::span<const std::byte> rest_;
};

}  // namespace hvdlite::base
