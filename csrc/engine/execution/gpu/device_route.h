// Chooses the route of a process set's GPU operations. Each member describes itself in a card, and all members make the same
// choice from the cards.
// Thread: pure. Owns: nothing. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/cuda_abi.h"

namespace hvdlite::engine {

// One member's card, which all other members receive.
struct RouteCard {
  enum Preference : std::int32_t { kAuto = 0, kNccl = 1, kStaged = 2 };
  std::int32_t knob = kAuto;      // the knob gpu_route
  std::int32_t has_gpu = 0;       // 0: the rank has joined, and could open no GPU
  std::int32_t nccl_version = 0;  // 0: the rank has opened no NCCL
  std::int32_t float32_sums = 0;  // the knob nccl_float32_sums
  device::cuda::Uuid gpu{};
  std::array<char, 220> why{};  // the error, if the rank could not open a GPU or NCCL
};

// kRefused: by the knob gpu_route, ranks demand different routes, or a rank demands NCCL although this is impossible.
enum class Route { kNccl, kStaged, kRefused };

struct RouteChoice {
  Route route = Route::kStaged;
  bool falls_back = false;  // staged, although no rank asked for it
  // True: the knob nccl_float32_sums is on at one member or more, so NCCL adds 16-bit floats in float32 on all members.
  bool float32_sums = false;
  std::string why;  // for the log and for errors; if NCCL was chosen, its version
};

// The remedy in an error, if the knob gpu_route demands NCCL, but NCCL cannot serve the members.
inline constexpr const char* kWithoutNccl =
    "; with HVDLITE_GPU_ROUTE=auto the tensors would go through host memory";

RouteCard::Preference knob_of(const std::string& gpu_route);
// Copies text into a fixed field of a message, and cuts off what is too long.
void put_text(std::span<char> room, const std::string& text);
std::string get_text(std::span<const char> room);

// cards[i] is the card of member i, whose global rank is members[i].
RouteChoice choose_route(std::span<const RouteCard> cards, const std::vector<int>& members);

}  // namespace hvdlite::engine
