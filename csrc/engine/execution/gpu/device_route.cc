// How the route follows from the knob gpu_route of each member and from an obstacle to NCCL, if there is one. The first row
// that applies is taken:
//
//    knobs                          obstacle                          route
//    some nccl, some staged         (not looked for)                  refused
//    some staged                    (not looked for)                  staged
//    any                            none                              nccl
//    all auto                       some                              staged; falls_back is true
//    some nccl                      no GPU or no NCCL on a member     refused
//    some nccl                      versions differ, or two members   nccl: perhaps this NCCL works nevertheless
//                                   share a GPU
//
// All members compute the choice from the same cards in the same order. So they reach the same route, and name the same ranks
// in the same text.
#include "engine/execution/gpu/device_route.h"

#include <algorithm>
#include <cstring>

#include "device/nccl.h"
#include "engine/model/text.h"

namespace hvdlite::engine {

namespace {

std::vector<int> members_with(RouteCard::Preference knob, std::span<const RouteCard> cards,
                              const std::vector<int>& members) {
  std::vector<int> found;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    if (cards[i].knob == knob) found.push_back(members[i]);
  }
  return found;
}

// The reason not to choose NCCL for these members; "" if there is none. *certain becomes true if NCCL is impossible for these
// members, and otherwise false. If there is a reason and *certain is false, NCCL is perhaps possible: the members choose NCCL
// nevertheless if one of them has HVDLITE_GPU_ROUTE=nccl.
std::string obstacle(std::span<const RouteCard> cards, const std::vector<int>& members,
                     bool* certain) {
  // The first loop looks at all members for an obstacle that makes NCCL impossible. It must come first: a card without a GPU or
  // without NCCL has zeros in the fields that the second loop compares, and for zeros the second loop names a wrong cause.
  *certain = true;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    if (cards[i].has_gpu != 0 && cards[i].nccl_version != 0) continue;
    return format_ranks({members[i]}) +
           (cards[i].has_gpu == 0 ? " cannot use a GPU (" : " has no NCCL (") +
           get_text(cards[i].why) + ")";
  }
  *certain = false;
  for (std::size_t i = 1; i < cards.size(); ++i) {
    if (cards[i].nccl_version != cards[0].nccl_version) {
      return "NCCL is " + device::nccl_version_text(cards[0].nccl_version) + " on " +
             format_ranks({members[0]}) + " but " +
             device::nccl_version_text(cards[i].nccl_version) + " on " + format_ranks({members[i]});
    }
    for (std::size_t other = 0; other < i; ++other) {
      if (std::memcmp(&cards[i].gpu, &cards[other].gpu, sizeof(cards[i].gpu)) == 0) {
        return format_ranks({members[other], members[i]}) + " share one GPU";
      }
    }
  }
  return "";
}

}  // namespace

RouteCard::Preference knob_of(const std::string& gpu_route) {
  if (gpu_route == "nccl") return RouteCard::kNccl;
  return gpu_route == "staged" ? RouteCard::kStaged : RouteCard::kAuto;
}

void put_text(std::span<char> room, const std::string& text) {
  const std::size_t length = std::min(text.size(), room.size() - 1);
  std::copy_n(text.begin(), length, room.begin());
  room[length] = '\0';
}

// The bytes come from another rank. If they have no terminating zero, the text ends with the field.
std::string get_text(std::span<const char> room) {
  return {room.begin(), std::find(room.begin(), room.end(), '\0')};
}

RouteChoice choose_route(std::span<const RouteCard> cards, const std::vector<int>& members) {
  RouteChoice choice;
  const std::vector<int> for_nccl = members_with(RouteCard::kNccl, cards, members);
  const std::vector<int> for_staged = members_with(RouteCard::kStaged, cards, members);
  choice.float32_sums = std::any_of(cards.begin(), cards.end(),
                                    [](const RouteCard& card) { return card.float32_sums != 0; });
  if (!for_nccl.empty() && !for_staged.empty()) {
    choice.route = Route::kRefused;
    choice.why = "HVDLITE_GPU_ROUTE is nccl on " + format_ranks(for_nccl) + " but staged on " +
                 format_ranks(for_staged) + "; set it alike on every rank";
    return choice;
  }
  if (!for_staged.empty()) {
    choice.why = "HVDLITE_GPU_ROUTE=staged on " + format_ranks(for_staged);
    return choice;
  }
  bool certain = false;
  choice.why = obstacle(cards, members, &certain);
  if (choice.why.empty() || (!for_nccl.empty() && !certain)) {
    choice.route = Route::kNccl;
    choice.why = "NCCL " + device::nccl_version_text(cards.front().nccl_version);
  } else if (for_nccl.empty()) {
    choice.falls_back = true;
  } else {
    choice.route = Route::kRefused;
    choice.why += kWithoutNccl;
  }
  return choice;
}

}  // namespace hvdlite::engine
