// A job in one thread and in virtual time: each rank has its real engine, a program, and a driver that makes its passes and
// sleeps between them as the engine's own threads do.
// Thread: one. Owns: the ranks, the time, what they log. Blocks: no. Throws: what a program threw; Failure at the deadline.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/time_source.h"
#include "engine/cycle.h"
#include "sim/network.h"
#include "sim/program.h"

namespace hvdlite::sim {

// What is written to stderr goes here while this lives.
class Log {
 public:
  Log();
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  std::string text() const;
  // The lines in which this occurs.
  std::vector<std::string> lines(const std::string& part) const;

 private:
  int stderr_ = -1, file_ = -1;
};

struct Shape {
  std::vector<int> hosts;  // number of each rank's host
  bool shared_memory = true;
  bool mpi_tells = false;
  bool ledger_copies =
      true;  // ranks that share no memory agree in copies of a ledger; otherwise by the coordinator
  std::size_t mail_bytes = 0;  // of each ring of control messages in a host; 0: as for real hosts
  std::uint64_t seed = 0;      // of the order in which ranks get to run; 0: by number
};

// All on one host.
Shape one_host(int size);

struct Operation {
  engine::CompletionPtr completion;
  std::vector<float> input, output;
  bool ended() const { return completion->is_done(); }
  base::Status status() const {
    return completion->failure ? *completion->failure : base::Status{};
  }
};

// A pause at whose end an operation's outcome is known.
using Wait = std::pair<Pause, std::function<base::Status()>>;

class Job;

class Rank {
 public:
  Rank(Job& job, int number, const base::Config& config);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int number() const { return number_; }
  int size() const;
  engine::SharedState& shared() { return shared_; }

  // --- what a program does; what it gets from these is for co_await ---
  Pause compute(double seconds);
  Pause until(std::function<bool()> condition);
  Operation& start(engine::Request request);
  // An allreduce of float32, a Sum; each element is the rank's number plus 1.
  Operation& start(const std::string& name, std::int64_t count = 4, std::int32_t set = 0);
  Wait wait(Operation& operation);
  Wait allreduce(const std::string& name, std::int64_t count = 4, std::int32_t set = 0);
  Wait barrier(const std::string& name = "barrier");
  Wait add_set(std::vector<std::int64_t> members);
  Wait join();
  // hvdlite.shutdown(), step by step as Engine::shutdown does it.
  Pause leave();
  // An exception that nobody catches: the others are told, and the process ends.
  Pause raise(const std::string& text);
  // The process ends; the program with it.
  void die(const std::string& how = "ended without telling the other ranks: it was killed");
  // From now on it does this instead.
  void replace(std::function<Program(Rank&)> program);
  // SIGSTOP, and SIGCONT after so long.
  void stop(double seconds);

  // --- what a test looks at ---
  engine::Outlook outlook() const { return cycle_.outlook(); }
  bool dead() const { return dead_; }
  bool done() const { return dead_ || program_.done(); }
  base::Status failure() const { return shared_.failure.status(); }
  bool failed() const { return shared_.failure.happened(); }
  // When the failure was first known here.
  Time failed_at() const { return failed_at_; }
  std::uint64_t passes() const { return passes_; }
  std::uint64_t wakeups() const { return wakeups_; }
  std::uint64_t timeouts() const { return timeouts_; }
  // Those that nothing but a lost wake-up explains: no ring came, nothing was due, and yet there was work.
  std::uint64_t timeouts_that_found_work() const { return lucky_timeouts_; }
  const std::deque<Operation>& operations() const { return operations_; }

 private:
  friend class Job;
  bool leave_on();
  void close();
  Time next() const;  // when it has something to do
  void tick();

  Job& job_;
  const int number_;
  std::deque<Operation> operations_;
  std::unique_ptr<Endpoint> transport_;
  engine::SharedState shared_;
  engine::Cycle cycle_;
  Program program_;
  bool bells_reach_all_ = true;

  bool dead_ = false, closed_ = false, waiting_ = false;
  Time runs_from_;  // stopped until then
  Time wakes_at_;
  bool asleep_ = false, due_ = false;  // due_: what it had queued would have been announced then
  std::uint64_t passes_ = 0, wakeups_ = 0, timeouts_ = 0, lucky_timeouts_ = 0;
  Time failed_at_;
  enum class Leaving { kNot, kDraining, kGoodbye, kFlushing, kDone } leaving_ = Leaving::kNot;
  Time leaves_until_;
  std::uint64_t activity_ = 0;
};

class Job {
 public:
  Job(Shape shape, const base::Config& config);

  Rank& rank(int number) { return ranks_[static_cast<std::size_t>(number)]; }
  std::deque<Rank>& ranks() { return ranks_; }
  Time now() const { return time_.now(); }
  double seconds_since(Time then) const { return base::seconds_between(then, now()); }
  Network& network() { return network_; }
  const Log& log() const { return log_; }

  // Gives every rank this program, which begins at once. It may be a lambda: it is kept.
  void begin(std::function<Program(Rank&)> program);
  // Goes on until all programs have ended, or so many virtual seconds are over: that fails the case.
  void run(double deadline = 3600);
  // Goes on for so long, whatever the programs do.
  void run_for(double seconds);
  // One round: every rank that has something to do does it. False if nothing will ever happen.
  bool round();
  // Every turn of a rank is a moment: after so many of them (of all ranks, counted from here) this is done.
  void at_turn(std::uint64_t turn, std::function<void()> action);
  // Has that come?
  bool acted() const { return !action_; }
  // How many there have been.
  std::uint64_t turns() const { return turns_; }
  // All ranks of a host are gone, and nobody is there to see it.
  void lose_host(int host);
  void cut_link(int host) { network_.cut[static_cast<std::size_t>(host)] = true; }

 private:
  friend class Rank;
  std::vector<Rank*> in_order();

  Log log_;
  base::ManualTime time_;
  const Shape shape_;
  std::shared_ptr<transport::Fabric> fabric_;
  Network network_;
  std::deque<Rank> ranks_;
  std::deque<std::function<Program(Rank&)>> programs_;
  std::function<void()> action_;
  std::uint64_t turns_ = 0, turns_left_ = 0;
  std::uint64_t draw_ = 0;
};

// With the knobs' usual values, but one line a warning and no times in it.
base::Config usual();

}  // namespace hvdlite::sim
