// What Negotiation wants done, and what it asks of its rank. Each call is carried out before it returns, so that things happen in
// the order in which they are decided.
// Thread: the holder of the progress token. Owns: nothing. Blocks: no. Throws: as who implements it says.
#pragma once

#include <cstddef>
#include <memory>
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
  // Something may have come for that rank: in shared memory, if it is on this host.
  virtual void ring(int rank) = 0;

  // --- operations ---
  // All members do this now. entries[i] is this rank's part in fused.parts[i]; one without a request means that it has joined.
  virtual void execute(SetId set, FusedOp fused, std::vector<Entry> entries) = 0;
  // The entry is about to be announced, and this rank has nothing else announced in that set. May it be prepared now, so that it
  // takes less when it is agreed? If all members have done so it comes to execute_prepared, and otherwise to execute.
  virtual bool prepare(SetId set, const Entry& entry) = 0;
  virtual void execute_prepared(SetId set, Entry& entry) = 0;
  // They have ended. Those without a request are not this rank's.
  virtual void finish(std::span<const Entry> entries, const base::Status& status) = 0;
  // Has all ended that was to be executed for that set?
  virtual bool idle(SetId set) = 0;

  // --- process sets ---
  // There is a new one, with these regions of the window. Gives the port through which its members agree, null if they do so by
  // messages.
  virtual std::unique_ptr<Agreement> add_set(const ProcessSet& set,
                                             const Regions::Grant& regions) = 0;
  virtual void remove_set(SetId set) = 0;
  // More regions for that set: for tensors of GPUs that go through host memory.
  virtual void share_staging(SetId set, const Regions::Grant& regions) = 0;
  virtual void joined(SetId set) = 0;  // all have

  // --- for the books ---
  virtual void reached(std::span<const Entry> entries, Stage stage) = 0;
  // Announced in memory: of this the flight recorder takes no note, which would cost every operation.
  virtual void announced_in_memory(std::span<const Entry> entries) = 0;
  // A step in memory is about to be made: what else takes time had better be done before.
  virtual void before_announcing() = 0;
  // So many operations are about to be agreed, as the last rank has asked for them.
  virtual void came_last(int rank, std::size_t operations) = 0;
};

}  // namespace hvdlite::engine
