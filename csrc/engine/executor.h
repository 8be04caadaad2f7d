// Runs what was agreed: per process set in one order, several operations in flight at once.
// Thread: the holder of the progress token. Owns: all operations, and the parked ones of a failed engine. Blocks: never.
// Throws: what the transport throws.
//
// Deadlock-free: the oldest unfinished operation of a set is always in flight on every member that knows of it, and
// nothing in one set waits for another set.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "engine/operation.h"
#include "transport/transport.h"

namespace hvdlite::engine {

class Executor {
 public:
  // Of the entries of one operation; those without a request are not this rank's.
  using Finished = std::function<void(std::span<const Entry> entries, const base::Status& status)>;
  using Started = std::function<void(std::span<const Entry> entries)>;

  Executor(transport::Transport& transport, collectives::Selection selection, OutputCache& outputs,
           std::size_t pool_bytes, Started started, Finished finished);
  ~Executor();

  void enqueue(ProcessSet& set, FusedOp fused, std::vector<Entry> entries);
  // Starts what may start and advances what is in flight; true if anything finished or started.
  bool advance();
  bool idle() const { return lanes_.empty(); }
  bool idle(SetId set) const { return !lanes_.contains(set); }
  // Fails everything not finished and keeps its memory for good.
  void park_all(const base::Status& why);
  // The transport is closed; memory_is_free: nothing touches parked operations any more.
  void close(bool memory_is_free);

 private:
  struct Waiting {
    FusedOp fused;
    std::vector<Entry> entries;
    std::uint32_t tag = 0;
  };
  // The operations of one process set.
  struct Lane {
    std::shared_ptr<const ProcessSet>
        set;  // a copy of what operations need: the set may be removed meanwhile
    std::deque<Waiting> waiting;
    std::deque<std::unique_ptr<Operation>> running;
    std::size_t running_bytes = 0;
  };
  std::uint32_t next_tag(ProcessSet& set) const;
  bool start(Lane& lane);
  bool step(Lane& lane);

  transport::Transport& transport_;
  collectives::Selection selection_;
  OutputCache& outputs_;
  BufferPool pool_;
  Started started_;
  Finished finished_;
  std::map<SetId, Lane> lanes_;
  std::vector<std::unique_ptr<Operation>> parked_;
};

}  // namespace hvdlite::engine
