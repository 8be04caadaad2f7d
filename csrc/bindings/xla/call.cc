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

bool has_weight(const hvdlite_request& request) {
  return (request.flags & HVDLITE_FLAG_WEIGHTED) != 0;
}

CallStatus outcome_of(int code) {
  return code == HVDLITE_OK ? CallStatus{} : failure(code, hvdlite_last_error());
}

}  // namespace

CollectiveCall::~CollectiveCall() { hvdlite_engine_destroy(engine_); }

CallStatus CollectiveCall::read(std::string_view description) {
  NumberReader reader(description);
  while (reader.has_more()) {
    hvdlite_request request{};  // what the tensors of a group have in common
    request.device = HVDLITE_DEVICE_CPU;
    request.kind = reader.number<std::int32_t>();
    request.op = reader.number<std::int32_t>();
    request.root = reader.number<std::int32_t>();
    request.process_set = reader.number<std::int32_t>();
    request.prescale = reader.number<double>();
    request.postscale = reader.number<double>();
    request.flags = reader.number<std::int32_t>() != 0 ? HVDLITE_FLAG_WEIGHTED : 0;
    request.codec = reader.number<std::int32_t>();
    request.codec_between = reader.number<std::int32_t>();
    request.codec_block = reader.number<std::int32_t>();
    request.group_size = reader.number<std::int32_t>();
    request.group = texts_.emplace_back(reader.rest_of_line()).c_str();
    for (; request.group_index < request.group_size && reader.has_more(); ++request.group_index) {
      request.dtype = reader.number<std::int32_t>();
      request.ndim = reader.number<std::int32_t>();
      std::vector<std::int64_t>& shape = shapes_.emplace_back();
      for (std::int32_t axis = 0; axis < request.ndim && reader.good(); ++axis) {
        shape.push_back(reader.number<std::int64_t>());
      }
      request.shape = shape.data();
      request.name = texts_.emplace_back(reader.rest_of_line()).c_str();
      requests_.push_back(request);
    }
  }
  if (reader.good()) return {};
  return failure(HVDLITE_E_INTERNAL,
                 "the description of an XLA program's collectives cannot be read; was the program "
                 "compiled with "
                 "another version of hvdlite?");
}

bool CollectiveCall::is_weighted() const { return std::ranges::any_of(requests_, has_weight); }

void CollectiveCall::weigh(double weight) {
  for (hvdlite_request& request : requests_) {
    if (has_weight(request)) request.weight = weight;
  }
}

std::span<const std::int64_t> CollectiveCall::shape(std::size_t index) const {
  const hvdlite_request& request = requests_[index];
  return {request.shape, static_cast<std::size_t>(request.ndim)};
}

void CollectiveCall::place(std::size_t index, const void* input, void* output) {
  requests_[index].input = input;
  requests_[index].output = output;
}

CallStatus CollectiveCall::submit(bool pool_thread) {
  engine_ = hvdlite_current_engine();
  if (engine_ == nullptr) return outcome_of(HVDLITE_E_NOT_INITIALIZED);
  hvdlite_submission what{};
  what.requests = requests_.data();
  what.count = requests_.size();
  what.pool_thread = pool_thread ? 1 : 0;
  return outcome_of(hvdlite_submit(engine_, &what, &work_));
}

CallStatus CollectiveCall::finish() {
  const CallStatus outcome = outcome_of(wait_for_end(engine_, work_));
  hvdlite_release(engine_, work_);
  return outcome;
}

}  // namespace hvdlite::xla
