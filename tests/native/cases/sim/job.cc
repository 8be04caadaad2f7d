#include "sim/job.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "engine/model/text.h"
#include "engine/negotiation/ledger.h"
#include "engine/pacing.h"
#include "harness.h"
#include "kernels/kernels.h"

namespace hvdlite::sim {

using base::OpKind;
using engine::Entry;
using engine::Request;

namespace {

constexpr base::microseconds kRound{1};  // what a pass takes, so that time never stands still
constexpr double kFlushSeconds = 1.0;    // as in engine.cc

collectives::Selection selection() {
  collectives::Selection selection;
  selection.tuning.isa = kernels::best_isa();
  return selection;
}

transport::FabricShape fabric_of(const Shape& shape, Network& network) {
  transport::FabricShape fabric;
  fabric.size = static_cast<int>(shape.hosts.size());
  fabric.hosts = shape.hosts;
  fabric.tile_bytes = 4096;
  fabric.ledger_bytes = engine::Ledger::bytes({});
  fabric.mail_bytes = shape.mail_bytes;
  fabric.rings = [&network](int rank) { network.node(rank).rung = true; };
  return fabric;
}

}  // namespace

// --- what is logged -------------------------------------------------------------------------------------------------

Log::Log() : stderr_(dup(STDERR_FILENO)), file_(memfd_create("log", 0)) {
  dup2(file_, STDERR_FILENO);
}

Log::~Log() {
  dup2(stderr_, STDERR_FILENO);
  close(stderr_);
  close(file_);
}

std::string Log::text() const {
  std::string text(static_cast<std::size_t>(lseek(file_, 0, SEEK_CUR)), '\0');
  const ssize_t got = pread(file_, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

std::vector<std::string> Log::lines(const std::string& part) const {
  std::vector<std::string> found;
  std::istringstream all(text());
  for (std::string line; std::getline(all, line);) {
    if (line.find(part) != std::string::npos) found.push_back(line);
  }
  return found;
}

// --- a rank ---------------------------------------------------------------------------------------------------------

Rank::Rank(Job& job, int number, const base::Config& config)
    : job_(job),
      number_(number),
      transport_(std::make_unique<Endpoint>(
          transport::connect(job.fabric_, number, job.shape_.shared_memory), job.network_)),
      shared_(config,
              base::Logger(config.log_level, config.log_timestamps, number, transport_->size()),
              {number, transport_->size()},
              std::make_shared<engine::OutputCache>(config.output_cache_bytes),
              base::TimeSource(job.time_)),
      cycle_(*transport_, shared_, selection()),
      runs_from_(job.now()),
      wakes_at_(job.now()) {
  for (int peer = 0; peer < transport_->size(); ++peer) {
    bells_reach_all_ = bells_reach_all_ && transport_->reaches_by_bell(peer);
  }
}

Rank::~Rank() { close(); }

int Rank::size() const { return transport_->size(); }

Pause Rank::compute(double seconds) {
  const Time end = job_.now() + base::from_seconds(seconds);
  return {[this, end] { return job_.now() >= end; }, end};
}

Pause Rank::until(std::function<bool()> condition) { return {std::move(condition), {}}; }

Operation& Rank::start(Request request) {
  request.seal();
  Operation& operation = operations_.emplace_back();
  const auto count = static_cast<std::size_t>(request.elements());
  operation.completion = std::make_shared<engine::Completion>();
  operation.input.assign(count, static_cast<float>(number_ + 1));
  operation.output.resize(count);
  Entry entry;
  entry.input = count == 0 ? nullptr : operation.input.data();
  const bool gives_output =
      !base::rows_may_differ(request.kind) && request.kind != OpKind::kReducescatter;
  entry.output = count == 0 || !gives_output ? nullptr : operation.output.data();
  entry.completion = operation.completion;
  entry.request = std::make_shared<const Request>(std::move(request));
  if (shared_.failure.happened() || closed_) {  // as Engine::require_accepting
    operation.completion->failure = std::make_unique<const base::Status>(shared_.failure.status());
    operation.completion->done = 1;
    return operation;
  }
  shared_.submitted({&entry, 1});
  shared_.waits.may_submit();
  const bool was_empty = shared_.queue.push({&entry, 1});
  ++shared_.counters.submitted;
  if (was_empty) transport_->ring(number_);
  return operation;
}

Operation& Rank::start(const std::string& name, std::int64_t count, std::int32_t set) {
  Request request;
  request.set = set == 0 ? base::SetId{0, 1} : shared_.sets.find(set)->id;
  request.op = base::ReduceOp::kSum;
  request.name = "allreduce." + name;
  request.shape = {count};
  return start(std::move(request));
}

Wait Rank::wait(Operation& operation) {
  const Time begun = job_.now();
  const std::int64_t moving = shared_.usage.moving(begun);
  waiting_ = true;
  shared_.waits.enter(operation.completion);
  return {{[&operation] { return operation.ended(); }, {}}, [this, &operation, begun, moving] {
            waiting_ = false;
            shared_.waits.leave(true, job_.now());
            shared_.usage.blocked(begun, job_.now(), moving);
            return operation.status();
          }};
}

Wait Rank::allreduce(const std::string& name, std::int64_t count, std::int32_t set) {
  return wait(start(name, count, set));
}

namespace {

Request request_of(OpKind kind, std::string name) {
  Request request;
  request.set = {0, 1};
  request.kind = kind;
  request.name = std::move(name);
  return request;
}

}  // namespace

Wait Rank::barrier(const std::string& name) {
  Request request = request_of(OpKind::kBarrier, name);
  request.dtype = base::DType::kUInt8;
  return wait(start(std::move(request)));
}

Wait Rank::join() { return wait(start(request_of(OpKind::kJoin, engine::kJoinName))); }

Wait Rank::add_set(std::vector<std::int64_t> members) {
  Request request = request_of(OpKind::kAddProcessSet, "add");
  request.splits = std::move(members);
  return wait(start(std::move(request)));
}

Pause Rank::leave() {
  leaving_ = Leaving::kDraining;
  activity_ = transport_->activity();
  leaves_until_ = job_.now() + base::from_seconds(shared_.config.failure_linger);
  return until([this] { return leave_on(); });
}

// Engine::shutdown, which waits in its steps.
bool Rank::leave_on() {
  const bool over = job_.now() >= leaves_until_;
  const bool drained = shared_.failure.happened() || cycle_.drained();
  if (leaving_ == Leaving::kDraining && (drained || over)) {
    if (!drained && transport_->activity() != std::exchange(activity_, transport_->activity())) {
      leaves_until_ = job_.now() + base::from_seconds(shared_.config.failure_linger);
      return false;
    }
    leaving_ = Leaving::kGoodbye;
    leaves_until_ = job_.now() + base::from_seconds(kFlushSeconds);
  }
  if (leaving_ == Leaving::kGoodbye &&
      (shared_.failure.happened() || cycle_.say_goodbye() || job_.now() >= leaves_until_)) {
    leaving_ = Leaving::kFlushing;
    leaves_until_ = job_.now() + base::from_seconds(kFlushSeconds);
    return false;
  }
  if (leaving_ != Leaving::kFlushing || !(drained || over)) return false;
  leaving_ = Leaving::kDone;
  close();
  return true;
}

Pause Rank::raise(const std::string& text) {
  cycle_.raise_failure("raised " + text);
  const Time end = job_.now() + base::from_seconds(shared_.config.failure_linger);
  return {[this, end] {
            if (!cycle_.failure_seen_by_all() && job_.now() < end) return false;
            die("");  // why has been told
            return true;
          },
          end};
}

void Rank::die(const std::string& how) {
  dead_ = true;
  job_.network_.die(number_, how);
}

void Rank::replace(std::function<Program(Rank&)> program) {
  const auto& kept = job_.programs_.emplace_back(std::move(program));
  program_ = kept(*this);
  waiting_ = false;
  job_.network_.node(number_).rung = true;
}

void Rank::stop(double seconds) { runs_from_ = job_.now() + base::from_seconds(seconds); }

void Rank::close() {
  if (std::exchange(closed_, true)) return;
  cycle_.end_all({base::ErrorCode::kAborted, engine::kShutDownHere});
  cycle_.close();
  shared_.outputs->close();
}

Time Rank::next() const {
  if (dead_ || (closed_ && program_.done())) return Time::max();
  const auto program = program_.wakes_at();
  Time at = closed_ ? Time::max() : wakes_at_;
  if (job_.network_.nodes[static_cast<std::size_t>(number_)].rung) at = job_.now();
  if (program) at = std::min(at, *program);
  return std::max(at, runs_from_);
}

void Rank::tick() {
  const Time now = job_.now();
  const bool rung = std::exchange(job_.network_.node(number_).rung, false);
  const bool timeout = asleep_ && !rung && now >= wakes_at_;
  wakeups_ += asleep_ && rung ? 1 : 0;
  timeouts_ += timeout ? 1 : 0;
  bool moved = false;
  if (!closed_) {
    ++passes_;
    moved = cycle_.pass(waiting_, true);
    if (timeout && moved && !due_) ++lucky_timeouts_;
    if (shared_.failure.happened() && failed_at_ == Time()) failed_at_ = now;
  }
  moved = program_.resume() || moved;
  if (dead_ || closed_) return;
  asleep_ = !moved;
  wakes_at_ = now;
  due_ = false;
  if (moved) return;
  const engine::Outlook outlook = cycle_.outlook();
  const base::microseconds longest = engine::longest_sleep(outlook, bells_reach_all_);
  due_ = outlook.due == longest;
  wakes_at_ = now + longest;
  // Engine::drive_until
  if (leaving_ != Leaving::kNot) wakes_at_ = std::min(wakes_at_, now + base::microseconds(1000));
}

// --- the job --------------------------------------------------------------------------------------------------------

namespace {

base::Config config_of(base::Config config, const Shape& shape) {
  if (!shape.ledger_copies) config.ledger_copies = 0;
  return config;
}

}  // namespace

Job::Job(Shape shape, const base::Config& config)
    : shape_(std::move(shape)),
      fabric_(transport::make_fabric(fabric_of(shape_, network_))),
      draw_(shape_.seed) {
  network_.mpi_tells = shape_.mpi_tells;
  for (const int host : shape_.hosts) network_.nodes.emplace_back().host = host;
  network_.cut.resize(shape_.hosts.size());
  for (int number = 0; number < static_cast<int>(shape_.hosts.size()); ++number) {
    ranks_.emplace_back(*this, number, config_of(config, shape_));
  }
}

void Job::begin(std::function<Program(Rank&)> program) {
  const auto& kept = programs_.emplace_back(std::move(program));
  for (Rank& rank : ranks_) rank.program_ = kept(rank);
}

void Job::at_turn(std::uint64_t turn, std::function<void()> action) {
  turns_left_ = turn;
  action_ = std::move(action);
}

std::vector<Rank*> Job::in_order() {
  std::vector<Rank*> order;
  for (Rank& rank : ranks_) order.push_back(&rank);
  if (shape_.seed == 0) return order;
  for (std::size_t i = order.size(); i > 1; --i) {
    draw_ = draw_ * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[i - 1], order[(draw_ >> 33) % i]);
  }
  return order;
}

bool Job::round() {
  bool any = false;
  for (Rank* rank : in_order()) {
    if (rank->next() > now()) continue;
    if (action_ && turns_left_-- == 0) std::exchange(action_, nullptr)();
    any = true;
    if (rank->next() > now()) continue;
    ++turns_;
    rank->tick();
  }
  if (any) {
    time_.step(kRound);
    return true;
  }
  Time next = Time::max();
  for (const Rank& rank : ranks_) next = std::min(next, rank.next());
  if (next == Time::max()) return false;
  time_.step(std::max<base::Clock::duration>(next - now(), kRound));
  return true;
}

void Job::run(double deadline) {
  const Time begun = now();
  while (!std::ranges::all_of(ranks_, &Rank::done)) {
    const bool late = seconds_since(begun) > deadline;
    if (!late && round()) continue;
    std::string who;
    for (const Rank& rank : ranks_) {
      if (!rank.done()) who += " " + std::to_string(rank.number());
    }
    native_test::failed(__FILE__, __LINE__,
                        "after " + std::to_string(seconds_since(begun)) + " s of virtual time " +
                            (late ? "" : "nothing happens any more, and ") +
                            "the programs of these ranks go on:" + who + "\n" + log_.text());
  }
}

void Job::run_for(double seconds) {
  const Time end = now() + base::from_seconds(seconds);
  while (now() < end && round()) {
  }
}

void Job::lose_host(int host) {
  cut_link(host);
  for (Rank& rank : ranks_) {
    if (network_.node(rank.number()).host == host) rank.die();
  }
}

Shape one_host(int size) { return {.hosts = std::vector<int>(static_cast<std::size_t>(size))}; }

base::Config usual() {
  base::Config config;
  config.log_timestamps = false;
  return config;
}

}  // namespace hvdlite::sim
