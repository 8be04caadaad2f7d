// What a simulated rank's program does, written as one would write it: a coroutine that waits for operations and for time.
// Thread: one. Owns: the coroutine. Blocks: no. Throws: from resume(), what the program threw.
//
//   Program late(Rank& rank) {
//     if (rank.number() == 1) co_await rank.compute(4);
//     EXPECT((co_await rank.allreduce("x")).ok());
//   }
#pragma once

#include <coroutine>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "base/thread.h"

namespace hvdlite::sim {

using Time = base::Clock::time_point;

// Until when a program does not go on: until the condition holds, which is asked after each pass, and at that time if there is
// one, since nothing else may happen then.
struct Pause {
  std::function<bool()> over;
  std::optional<Time> at;
};

class Program {
 public:
  struct promise_type {
    Pause pause;
    std::exception_ptr error;

    Program get_return_object() {
      return Program(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }

    // A pause that gives something when it is over.
    template <typename Result>
    struct Awaiter {
      promise_type& promise;
      std::pair<Pause, Result> what;
      bool await_ready() const { return false; }
      void await_suspend(std::coroutine_handle<promise_type>) { promise.pause = what.first; }
      auto await_resume() { return what.second(); }
    };
    template <typename Result>
    Awaiter<Result> await_transform(std::pair<Pause, Result> what) {
      return {*this, std::move(what)};
    }
    Awaiter<std::function<void()>> await_transform(Pause what) {
      return {*this, {std::move(what), [] {}}};
    }
  };

  Program() = default;
  explicit Program(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Program(Program&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Program& operator=(Program&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Program() {
    if (handle_) handle_.destroy();
  }

  bool done() const { return !handle_ || handle_.done(); }
  std::optional<Time> wakes_at() const {
    return done() ? std::nullopt : handle_.promise().pause.at;
  }
  // Goes on as far as it can; true if it did.
  bool resume() {
    bool any = false;
    while (!done()) {
      Pause& pause = handle_.promise().pause;
      if (pause.over && !pause.over()) break;
      pause = {};
      any = true;
      handle_.resume();
      if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    }
    return any;
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace hvdlite::sim
