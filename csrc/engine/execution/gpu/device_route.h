// Which way the GPU operations of a process set go: what each member can say of itself, and what all conclude from it alike.
// Thread: pure. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/cuda_abi.h"

namespace hvdlite::engine {

// Of one member, as it crosses to the others.
struct RouteCard {
  enum Preference : std::int32_t { kAuto = 0, kNccl = 1, kStaged = 2 };
  std::int32_t knob = kAuto;      // gpu_route
  std::int32_t has_gpu = 0;       // 0: it has joined, and no GPU could be opened
  std::int32_t nccl_version = 0;  // 0: there is none, and `why` says so
  std::int32_t float32_sums = 0;  // nccl_float32_sums
  device::cuda::Uuid gpu{};
  std::array<char, 220> why{};
};

struct RouteChoice {
  bool nccl = false;
  bool refused = false;       // gpu_route asks for what cannot be
  bool falls_back = false;    // staged although nobody asked for it
  bool float32_sums = false;  // of NCCL, on all members if one asks for it
  std::string why;
};

RouteCard::Preference knob_of(const std::string& gpu_route);
// Text in the fixed room of a message.
void put_text(std::span<char> room, const std::string& text);
std::string get_text(std::span<const char> room);

// cards[i] is that of member i, whose global rank is members[i].
RouteChoice choose_route(std::span<const RouteCard> cards, const std::vector<int>& members);
}  // namespace hvdlite::engine
