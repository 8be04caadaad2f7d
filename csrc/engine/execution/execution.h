// What the ranks have agreed on is done here: the process sets' memory, their operations, and what two ranks send one another.
// Thread: the holder of the progress token. Owns: what the sets share, the executor, transfers. Blocks: never, but close, for a moment.
// Throws: what operation.h says.
//
// Small allreduces are prepared (collectives/allreduce_inline.h): before the members have agreed, each puts its payload where the
// others will look for it. If all have, the operation needs no further exchange, and comes beside the executor's lanes: it is over
// as soon as it is agreed.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/execution/executor.h"
#include "engine/execution/sharing.h"
#include "engine/execution/transfers.h"
#include "engine/intake/shared_state.h"
#include "engine/negotiation/agreement.h"

namespace hvdlite::engine {

class Execution {
 public:
  Execution(transport::Transport& transport, collectives::Selection selection, SharedState& shared);

  // Gives the port through which the set's members agree, null if they share no memory for it.
  std::unique_ptr<Agreement> add_set(const ProcessSet& set, const Regions::Grant& regions);
  void share_staging(SetId set, const Regions::Grant& regions);
  // No operation of it follows.
  void remove_set(SetId set);
  // Do all members share memory?
  bool share_memory(SetId set) const;

  // True if this rank's payload has been put where the others will look for it.
  bool prepare(SetId set, const Entry& entry);
  // All members have.
  void execute_prepared(SetId set, Entry& entry);
  void execute(SetId set, FusedOp fused, std::vector<Entry> entries);

  // What is sent to another rank, or comes from it, as Transfers has it.
  void start_send(Entry entry, int to) { transfers_.send(std::move(entry), to); }
  void start_receive(Entry entry, int from) { transfers_.receive(std::move(entry), from); }

  // As Executor and Transfers have them.
  bool advance();
  bool idle() const { return executor_.idle() && transfers_.idle(); }
  bool idle(SetId set) const { return executor_.idle(set) && transfers_.idle(set); }
  bool settled() const { return executor_.settled(); }
  template <typename Visit>
  void for_each(Visit visit) const {
    executor_.for_each(visit);
    transfers_.for_each(visit);
  }
  void park_all(const base::Status& why, bool lost);
  void close(bool memory_is_free) { executor_.close(memory_is_free); }

 private:
  bool may_prepare(const collectives::SharedChannel& channel, const Request& request) const;

  transport::Transport& transport_;
  SharedState& shared_;
  const collectives::Selection selection_;
  std::map<SetId, ExecutionSet> sets_;
  Executor executor_;
  Transfers transfers_;
};

}  // namespace hvdlite::engine
