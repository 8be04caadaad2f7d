// Answers Membership's questions (Membership::Facts): the state of this rank's operations and callers, the line of code at
// which its program is, and what the transport and the kernel report about other ranks.
// Thread: the holder of the progress token. Owns: nothing. Blocks: no. Throws: what the transport throws.
#pragma once

#include <optional>
#include <string>

#include "engine/execution/execution.h"
#include "engine/intake/shared_state.h"
#include "engine/membership/membership.h"
#include "engine/negotiation/negotiation.h"
#include "engine/point_to_point/point_to_point.h"
#include "transport/transport.h"

namespace hvdlite::engine {

class SystemFacts final : public Membership::Facts {
 public:
  SystemFacts(transport::Transport& transport, SharedState& shared, const Negotiation& negotiation,
              const PointToPoint& point_to_point, const Execution& execution)
      : transport_(transport),
        shared_(shared),
        negotiation_(negotiation),
        point_to_point_(point_to_point),
        execution_(execution) {}

  bool find_lost(int* rank, std::string* how) override {
    return transport_.find_lost_peer(rank, how);
  }
  std::uint64_t received_from(int rank) override { return transport_.received_from(rank); }
  std::uint64_t activity() override { return transport_.activity(); }
  std::uint64_t version() override {
    const Counters& counters = shared_.counters;
    return static_cast<std::uint64_t>(counters.submitted + counters.completed + counters.failed);
  }
  bool all_wait() override { return shared_.waits.all_waiting().has_value(); }
  bool callbacks_wait() override { return shared_.watched > 0; }
  BlockedReport blocked() override;
  std::uint64_t newest() override { return shared_.recorder.newest(); }
  void for_each_unfinished(const Visit& visit) override;
  bool has_joined(SetId set) override { return negotiation_.has_joined(set); }
  double since_exemption(base::Clock::time_point now) override {
    return shared_.stall_exemption.over_for(now);
  }
  bool ask_program() override { return shared_.watchdog.ask(); }
  std::optional<std::string> take_answer() override { return shared_.watchdog.take(); }
  std::string state_of(int rank) override;

 private:
  transport::Transport& transport_;
  SharedState& shared_;
  const Negotiation& negotiation_;
  const PointToPoint& point_to_point_;
  const Execution& execution_;
};

}  // namespace hvdlite::engine
