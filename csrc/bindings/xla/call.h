// One call of an XLA program: groups of allreduces and broadcasts, described by text and submitted together.
// Thread: one at a time, with or without an interpreter's lock. Owns: a reference to the engine. Blocks: finish only. Throws:
// nothing; a CallStatus reports errors.
#pragma once

#include <cstdint>
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
  std::size_t size() const { return tensors_.size(); }
  // Does the call have a weight, as one more operand after the tensors?
  bool is_weighted() const;
  // Sets this rank's weight, for all groups that are weighted.
  void weigh(double weight) { weight_ = weight; }
  std::span<const std::int64_t> shape(std::size_t index) const;
  // Sets the address of a tensor, and the address for its result, which may be the same.
  void place(std::size_t index, const void* input, void* output);

  // pool_thread: as in hvdlite_submission.
  CallStatus submit(bool pool_thread);
  // Waits for all submitted operations; call it once, after submit() has succeeded. Returns the first failure, if any.
  // Afterwards none is in flight.
  CallStatus finish();

 private:
  struct TensorGroup {
    std::int32_t kind, op, root, process_set, weighted, size;
    double prescale, postscale;
    std::int32_t codec, codec_between, codec_block;
    std::string label;
  };
  struct Tensor {
    std::size_t group, index;  // its group, and its place there
    std::int32_t dtype, ndim;
    std::size_t first_dimension;
    std::string name;
    const void* input = nullptr;
    void* output = nullptr;
  };

  hvdlite_request request(const Tensor& tensor) const;

  hvdlite_engine* engine_ = nullptr;
  std::vector<TensorGroup> groups_;
  std::vector<Tensor> tensors_;
  std::vector<std::int64_t> dimensions_;
  double weight_ = 0;
  std::int64_t work_ = 0;  // what was submitted
};

}  // namespace hvdlite::xla
