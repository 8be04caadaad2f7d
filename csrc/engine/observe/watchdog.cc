// One question and one answer, under one lock:
//
//    asked_    set by ask()     cleared by the watchdog's next wait(), which then returns
//    answer_   set by tell()    taken by take(), and dropped by the next ask()
//
// ask() never waits. Before the first wait() there is no watchdog that could answer, so ask() returns false. An answer has no
// number. If ask() comes while the watchdog still works on the earlier question, take() may return the answer to that
// question. Both questions are the same (where is the program?), so the answer is only a little old.
#include "engine/observe/watchdog.h"

#include <utility>

namespace hvdlite::engine {

bool Watchdog::ask() {
  const std::lock_guard lock(mutex_);
  if (!attended_ || closed_) return false;
  answer_.reset();
  asked_ = true;
  changed_.notify_one();
  return true;
}

std::optional<std::string> Watchdog::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(answer_, std::nullopt);
}

bool Watchdog::wait() {
  std::unique_lock lock(mutex_);
  attended_ = true;
  changed_.wait(lock, [this] { return asked_ || closed_; });
  asked_ = false;
  return !closed_;
}

void Watchdog::tell(std::string text) {
  const std::lock_guard lock(mutex_);
  answer_ = std::move(text);
}

void Watchdog::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace hvdlite::engine
