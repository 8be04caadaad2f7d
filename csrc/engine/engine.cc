// (Over 400 lines, because most of its functions take the progress token from one another, and are read together.)
//
// Who makes the passes:
//
//    a caller waits          it takes the token, and makes passes until its operation is done (drive)
//    a caller sends or       it may take a free token for one pass (pass_at_once in submit.cc)
//    receives
//    further callers wait    each rings the doorbell and sleeps; one that wakes while the token is free takes it (wait_for)
//    no caller waits         the engine thread takes the token for one pass at a time (run)
//    a thread has a claim    the holder returns the token after its pass, and threads without a claim do not take the token
//                            (take_token_or_wait). Then the thread with the claim makes the passes (drive_until)
//
// Where a thread sleeps, and who wakes it:
//
//    shared_.event   callers without the token,   the end of an operation, the return of the token, the end of the engine
//                    threads with a claim
//    kick_           the engine thread, while     a submission with `wake`; poll(), resume(), shutdown(); the last caller to
//                    it may not make passes       stop waiting, if work is left
//    the doorbell    a thread whose passes did    other ranks; a submission with `wake`; a caller that waits without the token;
//                    nothing                      the last caller to stop waiting, if work is left; a claim; shutdown(); the
//                                                 GPU's completion thread
//
// Each of these three places has a number that changes when somebody wakes the sleepers. A thread that wants to sleep reads
// the number (EventCount::value(); listen() for the doorbell), then looks for work, and then sleeps only while the number is
// the same. A thread that has work for the sleepers first stores the work, and then changes the number. So no wake-up is lost
// between the look and the sleep. In two cases the look comes before the number is read, and a wake-up may be lost. A driving
// thread may miss a claim, so the thread with the claim rings every millisecond. The engine thread may miss the end (stop_),
// and then sleeps until kStandAside is over.
//
// A driving caller keeps the token while it sleeps. The engine thread gives the token back before it sleeps. So a caller that
// comes while the engine thread sleeps takes the token at once. A caller that comes while a driving caller sleeps has to ring
// the doorbell.
//
// The order of shutdown():
//
//    1  pause()              agreed operations end, because other ranks need this rank for them; from here on the token is kept
//    2  said_goodbye()       the other ranks learn that this rank takes part in no later operation
//    3  drained()            coordinators answer with their last decisions, which are carried out; all messages leave
//    4  queue.close()        before end_all(): an entry that is pushed after end_all() would never end
//    5  end_all()            ends all entries that are left
//    6  closed_              waiting callers and threads with a claim give up; the token is never free again
//    7  join, cycle_.close() in this order, because the engine thread may use the transport until it has ended
//    8  the other parts      after cycle_.close(), because operations of Execution use GPUs, arenas and outputs
#include "engine/engine.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/model/text.h"
#include "engine/set_up.h"

namespace hvdlite::engine {

using base::Clock;
using base::Error;
using base::ErrorCode;
using base::microseconds;

namespace {

// The time limit of step 2 of shutdown(), and again of step 3.
constexpr double kFlushSeconds = 1.0;

// A driving caller that does not sleep asks for a thorough pass (Cycle::pass) only once in kPassesBetweenMessages passes while
// nothing moves, and once in kMostPassesBetweenMessages passes while something moves: where ranks share memory, control
// messages are rare, and asking MPI for them may take as long as a small operation.
constexpr std::uint32_t kPassesBetweenMessages = 8;
constexpr std::uint32_t kMostPassesBetweenMessages = 64;

// The longest sleep of a thread that wants to drive while another thread does.
constexpr microseconds kStandAside{20'000};

// The first operation that failed; null if none has. All operations must have ended.
CompletionPtr first_failure(const CompletionArray& batch) {
  for (std::size_t i = 0; i < batch.size; ++i) {
    if (batch[i].failure) return batch.at(i);
  }
  return nullptr;
}

// The kernel clears this page in a forked child. So the question whether this process is a child costs one load, and no system
// call.
void* make_fork_canary() {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(ErrorCode::kSystem, "mmap of one page failed");
  madvise(memory, page, MADV_WIPEONFORK);
  *static_cast<volatile char*>(memory) = 1;
  return memory;
}

}  // namespace

Engine::Engine(std::unique_ptr<transport::Transport> transport, Topology topology,
               const base::Config& config, const base::WaitPolicy& waiting)
    : transport_(std::move(transport)),
      topology_(topology),
      shared_(config,
              base::Logger(config.log_level, config.log_timestamps, topology.rank, topology.size),
              TimelineOwner{topology.rank, topology.size}, make_output_cache(*transport_, config)),
      waiting_(waiting),
      cycle_(*transport_, shared_, selection_of(config, waiting)),
      fork_canary_(make_fork_canary()) {
  for (int peer = 0; peer < transport_->size(); ++peer) {
    bells_reach_all_ = bells_reach_all_ && transport_->reaches_by_bell(peer);
  }
  // The thread starts last, because it uses all other members.
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  shutdown();
  munmap(fork_canary_, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
}

bool Engine::usable_in_this_process() const {
  return *static_cast<volatile char*>(fork_canary_) == 1;
}

void Engine::require_usable() const {
  if (!usable_in_this_process()) {
    throw Error(ErrorCode::kNotInitialized,
                "this process was forked from an hvdlite rank and is not a rank itself: call "
                "hvdlite only in the process "
                "that called init() (start workers with the 'spawn' method if they need it)");
  }
}

// --- a caller waits, and drives the cycle meanwhile ------------------------------------------------------------------

bool Engine::poll(std::int64_t handle) {
  const CompletionArray batch = shared_.handles.find(handle);
  for (std::size_t i = 0; i < batch.size; ++i) {
    if (batch[i].is_done()) continue;
    kick_.bump();  // the engine thread must drive, because a caller that polls does not
    return false;
  }
  return true;
}

// Operations on host memory have no event: their results are there when the operations are done.
void Engine::order(std::int64_t handle, void* stream) const {
  const CompletionArray batch = shared_.handles.find(handle);
  const device::Event* last = nullptr;  // fused tensors share one event
  for (std::size_t i = 0; i < batch.size; ++i) {
    if (!batch[i].is_done()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the operations have not ended yet; wait for them first");
    }
    const device::Event* event = batch[i].event.get();
    if (event == nullptr || event == last) continue;
    if (shared_.failure.happened()) {
      const base::Status first = shared_.failure.status();
      throw Error(first.code, first.message);
    }
    event->order(static_cast<device::cuda::Stream>(stream));
    last = event;
  }
}

// All handles have one deadline. If an operation is not done at the deadline, the loop ends, even if operations of later
// handles are done.
bool Engine::wait(std::span<const std::int64_t> handles, microseconds limit,
                  CompletionPtr* failed) {
  require_usable();
  const Clock::time_point start = shared_.time.now();
  const std::int64_t moving_before = shared_.usage.moving(start);
  Clock::time_point ended = start;
  bool done = true;
  for (std::size_t i = 0; i < handles.size() && done; ++i) {
    const CompletionArray batch = completions(handles[i]);
    done = wait_for_all(batch, start + limit, &ended);
    if (done && !*failed) *failed = first_failure(batch);
  }
  shared_.usage.blocked(start, done ? ended : shared_.time.now(), moving_before);
  return done;
}

// Skips operations that are done: these need no look at the clock and no span in the timeline.
bool Engine::wait_for_all(const CompletionArray& batch, Clock::time_point deadline,
                          Clock::time_point* ended) {
  for (std::size_t i = 0; i < batch.size; ++i) {
    if (batch[i].is_done()) continue;
    std::optional<Timeline::WaitSpan> traced;
    if (shared_.tracing) traced.emplace(shared_.timeline, batch[i].record);
    if (!wait_for(batch.at(i), deadline, ended)) return false;
  }
  return true;
}

// The caller counts itself as waiting before it tries to get the token, and the engine thread reads that count before it takes
// the token. So while a caller waits, the engine thread makes at most one more pass. The last caller that stops waiting wakes
// the engine thread if operations have not ended. Without this wake-up, an engine thread that sleeps at kick_ would sleep until
// kStandAside is over, and one that sleeps at the doorbell until longest_sleep() is over.
bool Engine::wait_for(const CompletionPtr& completion, Clock::time_point deadline,
                      Clock::time_point* ended) {
  // Has this thread driven until the operation ended? If so, the cycle knows when the operation ended.
  bool drove = false;
  waiting_callers_.fetch_add(1, std::memory_order_seq_cst);
  shared_.waits.enter(completion);
  bool over = false;
  while (!completion->is_done() && !closed_.load(std::memory_order_acquire) && !over) {
    const std::uint32_t seen = shared_.event.value();
    if (!claimed() && try_take_token()) {
      drive(completion, deadline);
      drove = completion->is_done();
      if (drove) *ended = cycle_.moved_at();
      give_token_back();
    } else if (!completion->is_done()) {
      // The token holder may sleep at the doorbell, and may have made its last pass before this caller submitted its operation.
      // In this case the ring wakes the token holder for another pass.
      transport_->ring(transport_->rank());
      const auto rest = std::chrono::duration_cast<microseconds>(deadline - shared_.time.now());
      shared_.event.wait(seen, std::clamp(rest, microseconds(0), kStandAside));
      if (completion->is_done() && shared_.event.value() == seen) count_unrung_find();
    }
    over = !drove && shared_.time.now() >= deadline;
  }
  if (!drove) *ended = shared_.time.now();
  shared_.waits.leave(completion->is_done(), *ended);
  const bool others_wait = waiting_callers_.fetch_sub(1, std::memory_order_seq_cst) > 1;
  // From now on the engine thread has to drive the remaining operations.
  if (!others_wait && has_work()) wake_engine_thread();
  if (!completion->is_done() && closed_.load(std::memory_order_acquire)) {
    throw Error(ErrorCode::kAborted, kShutDownHere);
  }
  return completion->is_done();
}

// Wakes the engine thread at both places where it may sleep.
void Engine::wake_engine_thread() {
  transport_->ring(transport_->rank());
  kick_.bump();
}

// Only the holder may touch to_tell, so this function takes the list before it frees the token, and calls the watchers
// afterwards.
void Engine::give_token_back() {
  auto to_tell = std::exchange(shared_.to_tell, {});
  token_.store(false, std::memory_order_release);
  shared_.event.bump();
  tell(std::move(to_tell));
}

// Called without the token, because a watcher may wait for other operations, and takes the token for that. On a closed engine
// the calling thread has the token, but there every wait ends at once.
void Engine::tell(std::vector<std::unique_ptr<Watcher>> watchers) {
  for (const auto& watcher : watchers) watcher->then(watcher->data);
}

// Called with the token. Makes passes until the completion is done, a watcher has to be called, another thread claims the
// token, or the deadline has passed.
void Engine::drive(const CompletionPtr& completion, Clock::time_point deadline) {
  Stillness still;
  while (!completion->is_done() && shared_.to_tell.empty() && !claimed() &&
         pass_or_pause(&still, deadline, microseconds::max())) {
  }
}

// A thread that sleeps between its passes makes few of them, so each of its passes looks for all messages.
bool Engine::is_time_for_messages(const Stillness& still) {
  const std::uint32_t pause = still.since ? kPassesBetweenMessages : kMostPassesBetweenMessages;
  const bool due = ++passes_ >= pause || still.sleeps;
  if (due) passes_ = 0;
  return due;
}

// Called with the token. Makes one pass. If the pass did nothing, spins, yields or sleeps once, depending on how long this
// thread's passes have done nothing. limit: the longest sleep. Returns false after the deadline. While passes do something,
// only the cycle reads the clock.
bool Engine::pass_or_pause(Stillness* still, Clock::time_point deadline, microseconds limit) {
  // Listens before the pass: a ring during the pass then prevents the sleep after it.
  const std::uint32_t seen = still->sleeps ? transport_->listen() : 0;
  if (cycle_.pass(true, is_time_for_messages(*still))) {
    if (still->sleeps) transport_->unlisten();
    if (still->unrung) count_unrung_find();
    *still = {};
    return cycle_.moved_at() < deadline;
  }
  const Clock::time_point now = shared_.time.now();
  if (still->sleeps) {
    const auto rest = std::chrono::duration_cast<microseconds>(deadline - now);
    still->unrung = sleep(seen, cycle_.outlook(), std::min(rest, limit));
    return now < deadline;
  }
  if (!still->since) still->since = now;
  const auto lasted = now - *still->since;
  still->sleeps = lasted >= waiting_.spin + waiting_.yield;
  if (lasted < waiting_.spin) {
    base::spin_pause();
  } else if (!still->sleeps) {
    sched_yield();
  }
  return now < deadline;
}

// Sleeps at the doorbell, for at most `most`. Returns true if the bell did not ring, and if the bell rings for every kind of
// work that this thread expects. If the next pass then finds work, a ring was probably missing. The counter unrung_finds counts
// such passes.
bool Engine::sleep(std::uint32_t seen, const Outlook& outlook, microseconds most) {
  const auto limit =
      std::max(microseconds(0), std::min(longest_sleep(outlook, bells_reach_all_), most));
  Counters& counters = shared_.counters;
  counters.sleeps.fetch_add(1, std::memory_order_relaxed);
  counters.sleep_limits_us.fetch_add(limit.count(), std::memory_order_relaxed);
  transport_->wait(seen, limit);
  const bool rung = transport_->listen() != seen;
  transport_->unlisten();
  if (rung) counters.rung_sleeps.fetch_add(1, std::memory_order_relaxed);
  const bool looks_itself =
      outlook.moving_data || outlook.gpu_at_work || outlook.due.count() > 0 || !bells_reach_all_;
  return !rung && !looks_itself;
}

// --- the engine thread ----------------------------------------------------------------------------------------------

// Each turn of the loop takes the token, makes one pass, reads the outlook of the cycle, and returns the token. The engine
// thread never holds the token while it sleeps. `unrung` carries the answer of sleep() to the next turn of the loop: only the
// next pass shows whether there was work.
void Engine::run() {
  base::name_this_thread("hvdlite");
  base::sharpen_timers();
  Clock::time_point moved_at = shared_.time.now();
  bool moved = false;
  bool moving_data = false;
  bool unrung = false;
  while (!stop_.load(std::memory_order_acquire)) {
    const std::uint32_t kicked = kick_.value();
    if (waiting_callers_.load(std::memory_order_seq_cst) > 0 || claimed() || !try_take_token()) {
      kick_.wait(kicked, kStandAside);
      continue;
    }
    // While this thread listens at the bell, every ringing rank pays for a wake-up. So listen only if the next pass will
    // probably find no work, and this thread then sleeps.
    const bool spins =
        moving_data && waiting_.core_to_spare && shared_.time.now() - moved_at < waiting_.spin;
    const bool listens = !moved && !spins;
    const std::uint32_t seen = listens ? transport_->listen() : 0;
    moved = cycle_.pass(false, true);
    if (std::exchange(unrung, false) && moved) count_unrung_find();
    const Outlook outlook = cycle_.outlook();
    give_token_back();
    moving_data = outlook.moving_data;
    if (moved) moved_at = shared_.time.now();
    if (!listens) {
      base::spin_pause();
    } else if (moved) {
      transport_->unlisten();
    } else {
      unrung = sleep(seen, outlook, microseconds::max());
    }
  }
}

// --- the end --------------------------------------------------------------------------------------------------------

// The driving thread returns the token when it sees the claim. The driving thread may have looked for claims just before this
// claim, and then fallen asleep, so this thread rings again and again. Another thread that looked for claims just before this
// claim may still take the token, but for one pass at most. Returns false on a closed engine, whose token nobody gets.
bool Engine::take_token_or_wait() {
  claims_.fetch_add(1, std::memory_order_seq_cst);
  bool taken = false;
  while (!closed_.load(std::memory_order_acquire)) {
    const std::uint32_t seen = shared_.event.value();
    taken = try_take_token();
    if (taken) break;
    transport_->ring(transport_->rank());
    shared_.event.wait(seen, microseconds(1000));
  }
  claims_.fetch_sub(1, std::memory_order_seq_cst);
  return taken;
}

// Called with the token.
void Engine::drive_until(bool (Engine::*done)(), double seconds) {
  const Clock::time_point deadline = shared_.time.now() + base::from_seconds(seconds);
  Stillness still;
  while (!(this->*done)() && shared_.time.now() < deadline) {
    pass_or_pause(&still, deadline, microseconds(1000));
  }
}

void Engine::pause() {
  require_usable();
  if (!take_token_or_wait()) throw_shut_down();
  // If anything has moved within the time limit, the limit begins again.
  std::uint64_t moved = 0;
  do {
    moved = transport_->activity();
    drive_until(&Engine::drained, shared_.config.failure_linger);
  } while (!drained() && transport_->activity() != moved);
}

void Engine::resume() {
  give_token_back();
  kick_.bump();
}

void Engine::shutdown() {
  if (!usable_in_this_process() || shut_down_.exchange(true)) return;
  shared_.watchdog.close();
  pause();
  drive_until(&Engine::said_goodbye, kFlushSeconds);
  drive_until(&Engine::drained, kFlushSeconds);
  shared_.queue.close();
  cycle_.end_all({ErrorCode::kAborted, kShutDownHere});
  // Keeps the token: no thread may drive a closed engine.
  closed_.store(true, std::memory_order_release);
  shared_.event.bump();
  tell(std::exchange(shared_.to_tell, {}));
  stop_.store(true, std::memory_order_release);
  wake_engine_thread();
  thread_.join();
  cycle_.close();
  shared_.timeline.stop();
  shared_.devices.close();
  shared_.arenas->close();
  shared_.outputs->close();
}

void Engine::publish_failure(const std::string& cause) {
  if (!usable_in_this_process() || shut_down_.load() || shared_.failure.happened() ||
      topology_.size == 1) {
    return;
  }
  if (!take_token_or_wait()) return;
  if (!shared_.failure.happened()) {
    cycle_.raise_failure(cause);
    drive_until(&Engine::seen_by_all, shared_.config.failure_linger);
  }
  give_token_back();
}

std::string Engine::failure_cause() const { return shared_.failure.status().message; }

}  // namespace hvdlite::engine
