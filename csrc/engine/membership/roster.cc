// leave() only marks the rank. The lists of members and the descriptions keep it, so that a text about an operation can still
// name a rank that has left. others() and Membership::send() skip such ranks.
//
// What needed_for() returns on rank 1, for a set with the ranks 0, 1 and 2:
//
//    allreduce, and most others        0 2
//    send to rank 2                    2
//    receive from rank 0               0
//    receive from any rank             0 2
//    creation of a process set         0 2; if only the new set's members ask for it, those of 0 and 2 that are members
//
// Request::asks() decides this for each member.
#include "engine/membership/roster.h"

namespace hvdlite::engine {

std::vector<int> Roster::others() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != me_ && !has_left(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void Roster::leave(int rank) { ranks_[static_cast<std::size_t>(rank)].left = true; }

const std::vector<int>& Roster::members_of(SetId id) const {
  static const std::vector<int> none;
  const auto found = sets_.find(id);
  return found != sets_.end() ? *found->second : none;
}

std::vector<int> Roster::needed_for(const Request& request) const {
  std::vector<int> ranks;
  for (const int member : members_of(request.set)) {
    if (member != me_ && request.asks(member)) ranks.push_back(member);
  }
  return ranks;
}

void Roster::add_to(base::Hasher& hasher) const {
  for (const Rank& rank : ranks_) hasher.add(rank.left ? 1 : 0);
}

}  // namespace hvdlite::engine
