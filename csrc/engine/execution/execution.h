// What the ranks have agreed on is done here: the process sets' memory and their operations.
// Thread: the holder of the progress token. Owns: what the sets share, the executor. Blocks: never, but close, for a moment.
// Throws: what operation.h says.
//
// Small allreduces are prepared (collectives/allreduce_inline.h): before the members have agreed, each puts its payload where the
// others will look for it. If all have, the operation needs no further exchange, and comes beside the executor's lanes: it is over
// as soon as it is agreed.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "engine/execution/executor.h"
#include "engine/execution/sharing.h"
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

  // As Executor has them.
  bool advance() { return executor_.advance(); }
  bool idle() const { return executor_.idle(); }
  bool idle(SetId set) const { return executor_.idle(set); }
  bool settled() const { return executor_.settled(); }
  template <typename Visit>
  void for_each(Visit visit) const {
    executor_.for_each(visit);
  }
  void park_all(const base::Status& why, bool lost) { executor_.park_all(why, lost); }
  void close(bool memory_is_free) { executor_.close(memory_is_free); }

 private:
  bool may_prepare(const collectives::SharedChannel& channel, const Request& request) const;

  transport::Transport& transport_;
  SharedState& shared_;
  const collectives::Selection selection_;
  std::map<SetId, ExecutionSet> sets_;
  Executor executor_;
};

}  // namespace hvdlite::engine
