// What Negotiation tells its rank to do, and one question to the rank (idle). The implementation carries out a call before the
// call returns, so that actions happen in the order of decisions. Only the operations of execute() and execute_prepared() may
// still run after the call.
// Thread: the holder of the progress token. Owns: nothing. Blocks, Throws: as the implementation says.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/model/entry.h"
#include "engine/model/messages.h"
#include "engine/model/request.h"
#include "engine/negotiation/agreement.h"
#include "engine/negotiation/regions.h"
#include "engine/observe/flight_recorder.h"

namespace hvdlite::engine {

class Effects {
 public:
  using Stage = FlightRecorder::Stage;

  virtual ~Effects() = default;

  // --- to other ranks ---
  virtual void send(int rank, const Message& message) = 0;
  // Wakes that rank if it is on this host: the shared memory may hold something new for it.
  virtual void ring(int rank) = 0;

  // --- operations ---
  // All members execute this FusedOp at this place in the order. entries[i] is this rank's entry for fused.parts[i]; an entry
  // without a request means that this rank has joined or left, and has no value.
  virtual void execute(SetId set, FusedOp fused, std::vector<Entry> entries) = 0;
  // Prepares an operation (a unit that is one FusedOp), to save time after the agreement. Called just before the unit is
  // announced at the set's port (agreement.h). If the members share memory, it is called only while no other unit of this rank
  // waits at the port for agreement. Returns this rank's input, as far as other members need it; or nothing, if the operation
  // cannot be prepared. If the port refuses the announcement, there are two cases at the next attempt: prepare() is called
  // again, or the unit is announced as not prepared. When the operation is agreed at the port, execute_prepared() follows if
  // all members have prepared it, and otherwise execute().
  virtual std::optional<InlinePayload> prepare(SetId set, std::span<const Entry> unit) = 0;
  // Takes the unit's entries, or ends them before it returns. payloads[i]: what this rank needs of the input that prepare()
  // returned on member i. `payloads` is empty if the members share memory, because prepare() has put the inputs into that
  // memory.
  virtual void execute_prepared(SetId set, std::vector<Entry>& unit,
                                std::vector<std::vector<std::byte>> payloads) = 0;
  // These entries have ended. Entries without a request belong to no caller of this rank.
  virtual void finish(std::span<const Entry> entries, const base::Status& status) = 0;
  // Have all agreed operations and all sends and receives of that set ended on this rank?
  virtual bool idle(SetId set) = 0;

  // --- process sets ---
  // A set was added; it gets these regions of the window. Returns a port in shared memory if this rank is a member and all
  // members share a ledger there, and otherwise null.
  virtual std::unique_ptr<Agreement> add_set(const ProcessSet& set,
                                             const Regions::Grant& regions) = 0;
  virtual void remove_set(SetId set) = 0;
  // The set gets more regions, for GPU tensors that go through host memory.
  virtual void share_staging(SetId set, const Regions::Grant& regions) = 0;
  virtual void joined(SetId set) = 0;  // all members have joined

  // --- for records and counters ---
  virtual void reached(std::span<const Entry> entries, Stage stage) = 0;
  // The entries were announced at the set's port. Neither the flight recorder nor the timeline records this announcement now,
  // because a record would cost time in every operation. If this rank fails, it records the announcement then, so that its
  // error log shows the announcement.
  virtual void announced_at_port(std::span<const Entry> entries) = 0;
  // Called just before announcements at a port. Work that takes time belongs in this function and not in announced_at_port():
  // after the announcements, other members perhaps wait for this rank.
  virtual void before_announcing() = 0;
  // This many operations are now agreed. Of all requests for these operations, the one that came last was of rank `rank`.
  virtual void came_last(int rank, std::size_t operations) = 0;
};

}  // namespace hvdlite::engine
