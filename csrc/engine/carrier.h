// Carries out what Negotiation wants: of the transport, of the execution, and of what callers see.
// Thread: the holder of the progress token. Owns: nothing. Blocks: no. Throws: what the transport and the execution throw.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/execution/execution.h"
#include "engine/intake/shared_state.h"
#include "engine/membership/membership.h"
#include "engine/negotiation/effects.h"
#include "transport/transport.h"

namespace hvdlite::engine {

class Carrier final : public Effects {
 public:
  Carrier(transport::Transport& transport, SharedState& shared, Membership& membership,
          Execution& execution)
      : transport_(transport), shared_(shared), membership_(membership), execution_(execution) {}

  void send(int rank, const Message& message) override;
  void ring(int rank) override { transport_.ring(rank); }
  void execute(SetId set, FusedOp fused, std::vector<Entry> entries) override {
    execution_.execute(set, std::move(fused), std::move(entries));
  }
  bool prepare(SetId set, const Entry& entry) override { return execution_.prepare(set, entry); }
  void execute_prepared(SetId set, Entry& entry) override {
    execution_.execute_prepared(set, entry);
  }
  void finish(std::span<const Entry> entries, const base::Status& status) override {
    shared_.finish(entries, status);
  }
  bool idle(SetId set) override { return execution_.idle(set); }
  std::unique_ptr<Agreement> add_set(const ProcessSet& set, const Regions::Grant& regions) override;
  void remove_set(SetId set) override;
  void share_staging(SetId set, const Regions::Grant& regions) override {
    execution_.share_staging(set, regions);
  }
  void joined(SetId set) override { shared_.numbering.joined(set); }
  void reached(std::span<const Entry> entries, Stage stage) override {
    shared_.reached(entries, stage);
  }
  void announced_in_memory(std::span<const Entry> entries) override {
    shared_.usage.reached(entries, Stage::kAnnounced);
  }
  void before_announcing() override { static_cast<void>(shared_.usage.now()); }
  void came_last(int rank, std::size_t operations) override {
    shared_.usage.came_last(rank, operations);
  }

 private:
  transport::Transport& transport_;
  SharedState& shared_;
  Membership& membership_;
  Execution& execution_;
};

}  // namespace hvdlite::engine
