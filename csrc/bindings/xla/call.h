// One call that a compiled XLA program makes to hvdlite: groups of allreduces and broadcasts, described by text and submitted
// together.
// Thread: one at a time, with or without an interpreter's lock. Owns: a reference to the engine. Blocks: finish only. Throws:
// nothing; a CallStatus reports errors.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hvdlite/hvdlite.h"

namespace hvdlite::xla {

// The end of a call: an HVDLITE_E_* code, and the error's text.
struct CallStatus {
  int code = HVDLITE_OK;
  std::string text;
  bool failed() const { return code != HVDLITE_OK; }
};

class CollectiveCall {
 public:
  CollectiveCall() = default;
  CollectiveCall(const CollectiveCall&) = delete;
  CollectiveCall& operator=(const CollectiveCall&) = delete;
  ~CollectiveCall();

  // Reads the description that hvdlite/xla.py wrote.
  CallStatus read(std::string_view description);

  // The number of tensors in all groups.
  std::size_t size() const { return requests_.size(); }
  // Does the call have a weight, as one more operand after the tensors?
  bool is_weighted() const;
  // Sets this rank's weight, for all groups that are weighted.
  void weigh(double weight);
  std::span<const std::int64_t> shape(std::size_t index) const;
  // Sets the address of a tensor, and the address for its result, which may be the same.
  void place(std::size_t index, const void* input, void* output);

  // pool_thread: as in hvdlite_submission.
  CallStatus submit(bool pool_thread);
  // Waits for all submitted operations; call it once, after submit() has succeeded. Returns the first failure, if any.
  // Afterwards no operation is in flight.
  CallStatus finish();

 private:
  hvdlite_engine* engine_ = nullptr;
  std::vector<hvdlite_request> requests_;  // one for each tensor
  // The requests point to these; a deque never moves its elements.
  std::deque<std::string> texts_;
  std::deque<std::vector<std::int64_t>> shapes_;
  std::int64_t work_ = 0;  // what was submitted
};

}  // namespace hvdlite::xla
