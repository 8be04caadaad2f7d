// Submitted, not yet picked up by the engine: the one place where callers and the token holder meet.
// Thread: any; one lock, never held across a transport call. Owns: the queued entries. Blocks: no.
// Throws: Error(InvalidArgument) for a name already in flight.
#pragma once

#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/thread.h"
#include "engine/handle_table.h"
#include "transport/arena.h"

namespace hvdlite::engine {

// One rank's part in one operation. The memory belongs to the caller and stays valid until the completion is done.
struct Entry {
  RequestPtr request;
  const void* input = nullptr;
  void* output = nullptr;
  CompletionPtr completion;
  std::shared_ptr<const transport::Arena> arena;  // the request's, if it names one
};

class TensorQueue {
 public:
  // All or nothing. True if the queue was empty, so that somebody has to be told.
  bool push(std::vector<Entry> entries);
  // The queued entries, once they are due: asked for at once (flush), enough bytes, or the oldest has waited for patience.
  std::vector<Entry> take(bool flush, std::size_t enough_bytes, base::microseconds patience);
  // When take() without flush will give something; nothing if empty.
  std::optional<base::Clock::time_point> due(base::microseconds patience) const;
  // The name may be used again.
  void forget(const Request& request);

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::size_t bytes_ = 0;
  base::Clock::time_point oldest_;
  std::set<std::pair<SetId, std::string>> in_flight_;
};

}  // namespace hvdlite::engine
