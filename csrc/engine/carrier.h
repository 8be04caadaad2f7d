// Carries out what Negotiation and PointToPoint want done (the calls of their Effects), by means of the transport, Execution,
// Membership and the state that callers see (SharedState).
// Thread: the holder of the progress token. Owns: nothing. Blocks: as cycle.h says. Throws: what the transport and the
// execution throw.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/execution/execution.h"
#include "engine/intake/shared_state.h"
#include "engine/membership/membership.h"
#include "engine/negotiation/effects.h"
#include "engine/point_to_point/point_to_point.h"
#include "transport/transport.h"

namespace hvdlite::engine {

class Carrier final : public engine::Effects, public PointToPoint::Effects {
 public:
  Carrier(transport::Transport& transport, SharedState& shared, Membership& membership,
          Execution& execution, PointToPoint& point_to_point)
      : transport_(transport),
        shared_(shared),
        membership_(membership),
        execution_(execution),
        transfers_(execution.transfers()),
        point_to_point_(point_to_point) {}

  // --- Negotiation's effects; send, finish and reached are also effects of PointToPoint ---
  void send(int rank, const Message& message) override;
  void ring(int rank) override { transport_.ring(rank); }
  void execute(SetId set, FusedOp fused, std::vector<Entry> entries) override {
    execution_.execute(set, std::move(fused), std::move(entries));
  }
  std::optional<InlinePayload> prepare(SetId set, std::span<const Entry> unit) override {
    return execution_.prepare(set, unit);
  }
  void execute_prepared(SetId set, std::vector<Entry>& unit,
                        std::vector<std::vector<std::byte>> payloads) override {
    execution_.execute_prepared(set, unit, std::move(payloads));
  }
  void finish(std::span<const Entry> entries, const base::Status& status) override {
    shared_.finish(entries, status);
  }
  bool idle(SetId set) override { return execution_.idle(set) && !point_to_point_.waits(set); }
  std::unique_ptr<Agreement> add_set(const ProcessSet& set, const Regions::Grant& regions) override;
  void remove_set(SetId set) override;
  void share_staging(SetId set, const Regions::Grant& regions) override {
    execution_.share_staging(set, regions);
  }
  void joined(SetId set) override { shared_.numbering.joined(set); }
  void reached(std::span<const Entry> entries, FlightRecorder::Stage stage) override {
    shared_.reached(entries, stage);
  }
  void announced_at_port(std::span<const Entry> entries) override {
    shared_.usage.reached(entries, FlightRecorder::Stage::kAnnounced);
  }
  // Reads the clock for announced_at_port(), if this pass has not read it yet.
  void before_announcing() override { static_cast<void>(shared_.usage.now()); }
  void came_last(int rank, std::size_t operations) override {
    shared_.usage.came_last(rank, operations);
  }

  // --- PointToPoint's effects ---
  // Usage does not count the entry as waiting, because Usage charges waiting time to the rank that asks last, and only
  // collectives have such a rank.
  void posted(const Entry& entry) override {
    shared_.recorder.reached(entry.completion->record, FlightRecorder::Stage::kAnnounced);
    if (shared_.tracing) {
      shared_.timeline.reached({&entry, 1}, FlightRecorder::Stage::kAnnounced);
    }
  }
  void start_send(Entry entry, int to) override { transfers_.send(std::move(entry), to); }
  void start_receive(Entry entry, int from) override { transfers_.receive(std::move(entry), from); }
  void take(Entry receive, const void* payload) override {
    transfers_.take(std::move(receive), payload);
  }
  void take_own(Entry receive, Entry send) override {
    transfers_.take_own(std::move(receive), std::move(send));
  }

 private:
  transport::Transport& transport_;
  SharedState& shared_;
  Membership& membership_;
  Execution& execution_;
  Transfers& transfers_;
  PointToPoint& point_to_point_;
};

}  // namespace hvdlite::engine
