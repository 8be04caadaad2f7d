// Control messages as frames. A message is its length and its bytes, cut into pieces so short that MPI sends nearly all of them
// eagerly, that is, without asking the receiver first. Frames from one rank to another arrive in the order of sending.
// Thread: one object, one thread. Owns: the part of the next message that has arrived. Blocks: no. Throws: Error(Internal) on
// frames that no correct sender makes. Memory grows with the bytes that arrive, never with an announced length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace hvdlite::transport {

// A message that announces more bytes is an error. The limit is far above the size of the requests for all tensors of a job.
inline constexpr std::uint64_t kMostMessageBytes = std::uint64_t{1} << 30;

// Returns the message with its length in front. The caller cuts it into frames.
inline std::vector<std::byte> in_frames(std::span<const std::byte> message) {
  const std::uint64_t length = message.size();
  std::vector<std::byte> stream(sizeof(length));
  std::memcpy(stream.data(), &length, sizeof(length));
  stream.insert(stream.end(), message.begin(), message.end());
  return stream;
}

// Joins the frames of one sender.
class FrameAssembler {
 public:
  // Returns true when the message is complete; the next frame then begins another one.
  bool take(std::span<const std::byte> frame, std::vector<std::byte>* message) {
    if (!begun_) frame = begin(frame);
    if (frame.size() > expected_ - bytes_.size()) {
      refuse("is longer than the " + std::to_string(expected_) + " bytes that it announced");
    }
    bytes_.insert(bytes_.end(), frame.begin(), frame.end());
    if (bytes_.size() < expected_) return false;
    *message = std::exchange(bytes_, {});
    begun_ = false;
    return true;
  }

 private:
  std::span<const std::byte> begin(std::span<const std::byte> frame) {
    std::uint64_t length = 0;
    if (frame.size() < sizeof(length))
      refuse("begins with a frame that has no room for its length");
    std::memcpy(&length, frame.data(), sizeof(length));
    if (length == 0 || length > kMostMessageBytes) {
      refuse("announces " + std::to_string(length) + " bytes");
    }
    expected_ = length;
    begun_ = true;
    return frame.subspan(sizeof(length));
  }
  [[noreturn]] static void refuse(const std::string& what) {
    throw base::Error(base::ErrorCode::kInternal, "a control message " + what);
  }

  std::vector<std::byte> bytes_;
  std::uint64_t expected_ = 0;
  bool begun_ = false;
};

}  // namespace hvdlite::transport
