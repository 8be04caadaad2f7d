// Gives messages of other ranks to the machine that they concern, and carries out Membership's actions.
// Thread: the holder of the progress token. Owns: nothing. Blocks: as cycle.h says. Throws: what the machines and the
// transport throw.
#pragma once

#include <string>
#include <vector>

#include "engine/carrier.h"
#include "engine/membership/membership.h"
#include "engine/negotiation/negotiation.h"
#include "transport/transport.h"

namespace hvdlite::engine {

class Messenger {
 public:
  Messenger(transport::Transport& transport, SharedState& shared, Execution& execution,
            Membership& membership, Membership::Facts& facts, Negotiation& negotiation,
            PointToPoint& point_to_point, Carrier& carrier)
      : transport_(transport),
        shared_(shared),
        execution_(execution),
        membership_(membership),
        facts_(facts),
        negotiation_(negotiation),
        point_to_point_(point_to_point),
        carrier_(carrier) {}

  // Handles all messages that have arrived, or (host_only) only those of ranks that share a window with this one; stops if this
  // rank fails. Returns true if there were any.
  bool receive(bool host_only);
  // For a rank that has failed: handles only what Membership::hear_late handles, and drops all other messages.
  void receive_late();
  // Carries the actions out in order.
  void apply(Membership::Actions actions);
  // Ends all operations of this rank with this error.
  void end_all(const base::Status& why);

 private:
  // Passes the message to its machine: a Verdict to Negotiation or PointToPoint, and a kind that is not named here to
  // Membership. Before a Goodbye, Negotiation catches up.
  void hear(int source, Message& message);
  void hear(int source, Announcement& message) { negotiation_.hear(source, std::move(message)); }
  void hear(int source, ResponseList& message) { negotiation_.hear(source, std::move(message)); }
  void hear(int source, LedgerSteps& message) { negotiation_.hear(source, std::move(message)); }
  void hear(int source, Verdict& message);
  void hear(int source, Offer& message) { point_to_point_.hear(source, std::move(message)); }
  void hear(int source, Clearance& message) { point_to_point_.hear(source, message); }
  void hear(int source, Coming& message) { point_to_point_.hear(source, message); }
  void hear(int source, Withdrawal& message) { point_to_point_.hear(source, message); }
  void hear(int source, Rejection& message) { point_to_point_.hear(source, message); }
  void hear(int source, Receipt& message) { point_to_point_.hear(source, message); }
  template <typename Content>
  void hear(int source, Content& message);

  void carry_out(Membership::Send& action);
  void carry_out(const Membership::Announce& action);
  void carry_out(const Membership::Warn& action);
  void carry_out(const Membership::Fail& action);
  void carry_out(const Membership::Left& action);
  void carry_out(const Membership::Undecided& action);
  void carry_out(const Membership::Log& action) {
    shared_.log.write(action.level, "control", action.text);
  }
  template <typename Tell>
  void try_to_tell(const std::string& whom, Tell tell);
  void tell_user(const base::Status& why);

  transport::Transport& transport_;
  SharedState& shared_;
  Execution& execution_;
  Membership& membership_;
  Membership::Facts& facts_;
  Negotiation& negotiation_;
  PointToPoint& point_to_point_;
  Carrier& carrier_;
  std::vector<std::byte> bytes_;  // memory for a message
};

}  // namespace hvdlite::engine
