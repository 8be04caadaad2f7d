#include "call.h"

#include <algorithm>
#include <charconv>

#include "ending.h"

namespace hvdlite::xla {

namespace {

// Reads the numbers of a line, with one space between them, and then the rest of the line.
class NumberReader {
 public:
  explicit NumberReader(std::string_view text)
      : next_(text.data()), end_(text.data() + text.size()) {}

  template <typename Number>
  Number number() {
    Number value{};
    const auto [past, error] = std::from_chars(next_, end_, value);
    good_ = good_ && error == std::errc{} && past != end_ && *past == ' ';
    if (good_) next_ = past + 1;
    return value;
  }

  std::string rest_of_line() {
    const char* first = next_;
    while (next_ != end_ && *next_ != '\n') ++next_;
    std::string rest(first, next_);
    if (next_ != end_) ++next_;
    return rest;
  }

  bool has_more() const { return good_ && next_ != end_; }
  bool good() const { return good_; }

 private:
  const char* next_;
  const char* end_;
  bool good_ = true;
};

// Python finds the error's class by this number (hvdlite/xla.py).
CallStatus failure(int code, const std::string& text) {
  return {code, "hvdlite error " + std::to_string(code) + ": " + text};
}

CallStatus outcome_of(int code) {
  return code == HVDLITE_OK ? CallStatus{} : failure(code, hvdlite_last_error());
}

}  // namespace

CollectiveCall::~CollectiveCall() {
  if (engine_ != nullptr) hvdlite_engine_destroy(engine_);
}

CallStatus CollectiveCall::read(std::string_view description) {
  NumberReader reader(description);
  while (reader.has_more()) {
    TensorGroup& group = groups_.emplace_back();
    group.kind = reader.number<std::int32_t>();
    group.op = reader.number<std::int32_t>();
    group.root = reader.number<std::int32_t>();
    group.process_set = reader.number<std::int32_t>();
    group.prescale = reader.number<double>();
    group.postscale = reader.number<double>();
    group.weighted = reader.number<std::int32_t>();
    group.codec = reader.number<std::int32_t>();
    group.codec_between = reader.number<std::int32_t>();
    group.codec_block = reader.number<std::int32_t>();
    group.size = reader.number<std::int32_t>();
    group.label = reader.rest_of_line();
    for (std::int32_t index = 0; index < group.size && reader.has_more(); ++index) {
      Tensor& tensor = tensors_.emplace_back();
      tensor.group = groups_.size() - 1;
      tensor.index = static_cast<std::size_t>(index);
      tensor.dtype = reader.number<std::int32_t>();
      tensor.ndim = reader.number<std::int32_t>();
      tensor.first_dimension = dimensions_.size();
      for (std::int32_t i = 0; i < tensor.ndim && reader.good(); ++i) {
        dimensions_.push_back(reader.number<std::int64_t>());
      }
      tensor.name = reader.rest_of_line();
    }
  }
  if (reader.good()) return {};
  return failure(HVDLITE_E_INTERNAL,
                 "the description of an XLA program's collectives cannot be read; was the program "
                 "compiled with "
                 "another version of hvdlite?");
}

bool CollectiveCall::is_weighted() const {
  return std::ranges::any_of(groups_, [](const TensorGroup& group) { return group.weighted != 0; });
}

std::span<const std::int64_t> CollectiveCall::shape(std::size_t index) const {
  const Tensor& tensor = tensors_[index];
  return {dimensions_.data() + tensor.first_dimension, static_cast<std::size_t>(tensor.ndim)};
}

void CollectiveCall::place(std::size_t index, const void* input, void* output) {
  tensors_[index].input = input;
  tensors_[index].output = output;
}

hvdlite_request CollectiveCall::request(const Tensor& tensor) const {
  const TensorGroup& group = groups_[tensor.group];
  hvdlite_request request{};
  request.kind = group.kind;
  request.dtype = tensor.dtype;
  request.op = group.op;
  request.root = group.root;
  request.process_set = group.process_set;
  request.device = HVDLITE_DEVICE_CPU;
  request.name = tensor.name.c_str();
  request.ndim = tensor.ndim;
  request.shape = dimensions_.data() + tensor.first_dimension;
  request.input = tensor.input;
  request.output = tensor.output;
  request.prescale = group.prescale;
  request.postscale = group.postscale;
  request.codec = group.codec;
  request.codec_between = group.codec_between;
  request.codec_block = group.codec_block;
  request.group = group.label.c_str();
  request.group_size = group.size;
  request.group_index = static_cast<std::int32_t>(tensor.index);
  request.flags = group.weighted != 0 ? HVDLITE_FLAG_WEIGHTED : 0;
  request.weight = group.weighted != 0 ? weight_ : 0;
  return request;
}

CallStatus CollectiveCall::submit(bool pool_thread) {
  engine_ = hvdlite_current_engine();
  if (engine_ == nullptr) return outcome_of(HVDLITE_E_NOT_INITIALIZED);
  std::vector<hvdlite_request> requests;
  requests.reserve(tensors_.size());
  for (const Tensor& tensor : tensors_) requests.push_back(request(tensor));
  hvdlite_submission what{};
  what.requests = requests.data();
  what.count = requests.size();
  what.pool_thread = pool_thread ? 1 : 0;
  return outcome_of(hvdlite_submit(engine_, &what, &work_));
}

CallStatus CollectiveCall::finish() {
  const CallStatus outcome = outcome_of(wait_for_end(engine_, work_));
  hvdlite_release(engine_, work_);
  return outcome;
}

}  // namespace hvdlite::xla
