#include "engine/flight_recorder.h"

#include <cstdio>

#include "engine/validate.h"

namespace hvdlite::engine {
namespace {

constexpr const char* kStageNames[] = {"submitted, not yet announced",
                                       "announced, waiting for other ranks",
                                       "agreed, waiting to start",
                                       "moving data",
                                       "done",
                                       "failed"};

}  // namespace

FlightRecorder::FlightRecorder(std::size_t capacity) : capacity_(capacity) {
  ring_.reserve(capacity);
}

std::uint64_t FlightRecorder::submitted(RequestPtr request) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = next_++;
  if (capacity_ == 0) return number;
  const base::Clock::time_point now = base::Clock::now();
  Record record{number, std::move(request), Stage::kSubmitted, now, now};
  if (ring_.size() < capacity_) {
    ring_.push_back(std::move(record));
  } else {
    ring_[(number - 1) % capacity_] = std::move(record);
  }
  return number;
}

void FlightRecorder::reached(std::uint64_t number, Stage stage) {
  const std::lock_guard lock(mutex_);
  if (ring_.empty()) return;
  Record& record = ring_[(number - 1) % capacity_];
  if (record.number != number) return;  // overwritten by a later one
  record.stage = stage;
  record.last = base::Clock::now();
}

std::string FlightRecorder::text(std::size_t most) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  const base::Clock::time_point now = base::Clock::now();
  const std::size_t start = ring_.size() < capacity_ ? 0 : (next_ - 1) % capacity_;
  for (std::size_t i = ring_.size() > most ? ring_.size() - most : 0; i < ring_.size(); ++i) {
    const Record& record = ring_[(start + i) % ring_.size()];
    char times[96];
    snprintf(times, sizeof(times), "submitted %.3f s ago, ",
             base::seconds_between(record.submitted, now));
    char since[64];
    snprintf(since, sizeof(since), " (%.3f s ago)", base::seconds_between(record.last, now));
    const Request& request = *record.request;
    text += "  #" + std::to_string(record.number) + " " + describe(request) + ", " +
            std::string(base::name_of(request.dtype)) + format_shape(request.shape) + ": " + times +
            kStageNames[static_cast<int>(record.stage)] + since + "\n";
  }
  return text;
}

}  // namespace hvdlite::engine
