// How records are written and read, with a capacity of 4:
//
//    number      5       6       7       8       9
//    place       1       2       3       0       1      number 9 overwrites the record of number 5
//    word       8*5+1   8*6+3   8*7+2   8*8+4   8*9     (announced, started, agreed, done, submitted)
//
// reached() changes the word by a compare-and-exchange, and only if the word has the operation's number. So a later stage of
// number 5 never becomes the stage of number 9: if reached() reads the word of number 9, it returns. If it reads the word of
// number 5, and number 9 then overwrites the record, the exchange fails, because the word has changed.
//
// text() holds the lock, so no submission changes a record while text() reads it. Stages may change meanwhile, and the time of
// a stage is stored after the stage. So a line may show a stage with the time of another stage.
#include "engine/observe/flight_recorder.h"

#include <algorithm>

#include "base/files.h"
#include "base/text.h"
#include "engine/model/text.h"

namespace hvdlite::engine {
namespace {

constexpr const char* kStageNames[] = {"submitted, not yet announced",
                                       "announced, waiting for other ranks",
                                       "agreed, waiting to start",
                                       "moving data",
                                       "done",
                                       "failed"};

// At least the number of stages. A power of two, so that divisions are shifts.
constexpr std::uint64_t kStages = 8;

}  // namespace

FlightRecorder::FlightRecorder(Settings settings, base::TimeSource time)
    : time_(time),
      capacity_(settings.capacity),
      file_prefix_(settings.folder.empty() ? ""
                                           : settings.folder + "/hvdlite-operations-rank" +
                                                 std::to_string(settings.rank) + "-"),
      ring_(std::make_unique<Record[]>(settings.capacity)) {}

// The word is stored last: from then on reached() finds the record under its new number.
void FlightRecorder::submitted(std::span<const Entry> entries) {
  const base::Clock::time_point now = time_.coarse_now();
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::uint64_t number = next_++;
    entries[i].completion->record = number;
    // A capacity of 0 skips every entry, so there is no division by 0.
    if (entries.size() - i > capacity_) continue;  // would be overwritten at once
    Record& record = ring_[number % capacity_];
    record.request = entries[i].request;
    record.submitted = now;
    record.last.store(now, std::memory_order_relaxed);
    record.word.store(number * kStages, std::memory_order_release);
  }
}

void FlightRecorder::reached(std::uint64_t number, Stage stage) {
  if (capacity_ == 0) return;
  Record& record = ring_[number % capacity_];
  std::uint64_t word = record.word.load(std::memory_order_relaxed);
  if (word / kStages != number) return;  // a later operation has overwritten the record
  const std::uint64_t next = number * kStages + static_cast<std::uint64_t>(stage);
  // If the exchange fails, no second attempt is needed: another thread has overwritten the record, or has stored a stage
  // itself.
  if (record.word.compare_exchange_strong(word, next, std::memory_order_relaxed)) {
    record.last.store(time_.coarse_now(), std::memory_order_relaxed);
  }
}

std::string FlightRecorder::report(std::size_t ended) const {
  std::string shown = excerpt(ended);
  if (shown.empty() || file_prefix_.empty()) return shown;
  const std::string all = text();
  if (std::ranges::count(all, '\n') <= std::ranges::count(shown, '\n')) return shown;
  std::string path = file_prefix_;
  const std::string problem = base::write_new_file(path, ".txt", all);
  return shown + "  all recorded operations: " +
         (problem.empty() ? path : "not written (" + path + ": " + problem + ")") + "\n";
}

// If all recorded operations have ended, the last ones show how far the rank came.
std::string FlightRecorder::excerpt(std::size_t ended) const {
  const std::string unended = text(kUnended, 0);
  if (!unended.empty()) return unended;
  const std::uint64_t kept = std::min<std::uint64_t>(newest(), capacity_);
  return text(kEverything, kept - std::min<std::uint64_t>(kept, ended));
}

// All numbers from next_ - kept on have a record: a submission leaves out only entries that its own later entries would
// overwrite.
std::string FlightRecorder::text(bool unended_only, std::uint64_t skipped) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  const base::Clock::time_point now = time_.coarse_now();
  const std::uint64_t kept = std::min<std::uint64_t>(next_ - 1, capacity_);
  for (std::uint64_t number = next_ - kept + skipped; number < next_; ++number) {
    const Record& record = ring_[number % capacity_];
    const std::uint64_t stage = record.word.load(std::memory_order_relaxed) % kStages;
    if (unended_only && stage >= static_cast<std::uint64_t>(Stage::kDone)) continue;
    const auto ago = [now](base::Clock::time_point time) {
      return base::to_text(base::seconds_between(time, now), 3) + " s ago";
    };
    const Request& request = *record.request;
    text += "  #" + std::to_string(number) + " " + on_one_line(describe(request)) + ", " +
            format_dtype(request.dtype, request.layout) + format_shape(request.shape) +
            ": submitted " + ago(record.submitted) + ", " + kStageNames[stage] + " (" +
            ago(record.last.load(std::memory_order_relaxed)) + ")\n";
  }
  return text;
}

}  // namespace hvdlite::engine
