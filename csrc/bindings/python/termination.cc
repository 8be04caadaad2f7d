// Logs a rank's last operations, or its state without an engine, when SIGTERM ends it. A launcher sends SIGTERM to all ranks
// after a rank has died. Python would run a handler that is written in Python only between two of Python's instructions; the
// handler in this file also runs while native code computes.
//
// A signal handler may do almost nothing. So this handler wakes a thread, waits for the thread for at most kPatienceMs, and
// lets the process end as it would have ended without the handler. The handler is installed only if there is no other one.
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <string>
#include <thread>

#include "binding.h"

namespace hvdlite::python {
namespace {

// The number of ended operations that are logged if no operation is in flight.
constexpr std::int64_t kEndedInLog = 3;
// A launcher sends SIGKILL later; Open MPI after a second.
constexpr int kPatienceMs = 500;

// A handler has no arguments, so its state belongs to the process. It is never destroyed, because a signal may come at any
// time.
struct Termination {
  pid_t owner = 0;  // a forked child logs nothing
  int rank = 0, size = 1;
  std::atomic<bool> has_shut_down{
      false};  // without an engine: true after shutdown, false in init()
  sem_t asked = {};
  std::atomic<bool> said{false};
};
Termination state;

void log(const char* place, const std::string& more) {
  const std::string text = std::string("SIGTERM ends this rank") + place +
                           ". A launcher sends it to all ranks when one has failed: look for that "
                           "rank's output, and for what the launcher says. Horovod has been shut "
                           "down" +
                           more;
  hvdlite_log(kErrorLevel, state.rank, state.size, "control", text.c_str());
}

void say() {
  hvdlite_engine* const engine = hvdlite_current_engine();
  if (engine == nullptr) {
    log(state.has_shut_down.load() ? " after shutdown()" : " in init()", "");
    return;
  }
  if (*hvdlite_failure_cause(engine) == '\0') {  // otherwise the cause was logged
    char* const record = hvdlite_flight_record(engine, kEndedInLog);
    log("", std::string("\nlast operations of this rank:\n") + (record != nullptr ? record : ""));
    hvdlite_free(record);
  }
  hvdlite_engine_destroy(engine);
}

void wait_and_say() {
  pthread_setname_np(pthread_self(), "hvdlite-term");
  while (sem_wait(&state.asked) != 0) {
  }
  say();
  state.said.store(true);
}

extern "C" void end_with_last_words(int signal) {
  if (getpid() == state.owner) {
    sem_post(&state.asked);
    const timespec moment = {0, 1'000'000};
    for (int waited = 0; waited < kPatienceMs && !state.said.load(); ++waited) {
      nanosleep(&moment, nullptr);
    }
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void install(int rank, int size, bool has_shut_down) {
  state.has_shut_down.store(has_shut_down);
  state.rank = rank;
  state.size = size;
  struct sigaction present = {};
  if (sigaction(SIGTERM, nullptr, &present) != 0) return;
  if ((present.sa_flags & SA_SIGINFO) != 0 || present.sa_handler != SIG_DFL) return;
  if (state.owner != getpid()) {  // otherwise another handler was there meanwhile
    state.owner = getpid();
    sem_init(&state.asked, 0, 0);
    std::thread(wait_and_say).detach();
  }
  struct sigaction ours = {};
  ours.sa_handler = end_with_last_words;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGTERM, &ours, nullptr);
}

}  // namespace

void register_termination(nb::module_& module) {
  using namespace nb::literals;
  module.def("speak_at_sigterm", &install, "rank"_a, "size"_a, "has_shut_down"_a = false);
}

}  // namespace hvdlite::python
