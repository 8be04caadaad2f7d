#include "engine/engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "engine/model/text.h"
#include "kernels/kernels.h"

namespace hvdlite::engine {

using base::Clock;
using base::Error;
using base::ErrorCode;
using base::microseconds;

namespace {

// An algorithm that waits for a flag polls for so long inside one pass: a few times what it takes a cache line to come over.
constexpr microseconds kInnerSpin{3};
// Time for messages to leave at shutdown.
constexpr double kFlushSeconds = 1.0;

collectives::TileStores stores_of(const std::string& knob) {
  using collectives::TileStores;
  if (knob == "ordinary") return TileStores::kOrdinary;
  return knob == "streaming" ? TileStores::kStreaming : TileStores::kAuto;
}

collectives::Selection selection_of(const base::Config& config, const base::Waiting& waiting) {
  collectives::Selection selection;
  selection.allreduce = config.allreduce_algorithm;
  selection.reducescatter = config.reducescatter_algorithm;
  selection.allgatherv = config.allgatherv_algorithm;
  selection.broadcast = config.broadcast_algorithm;
  selection.alltoallv = config.alltoallv_algorithm;
  selection.barrier = config.barrier_algorithm;
  selection.deterministic = config.deterministic;
  selection.tuning.deterministic = config.deterministic;
  selection.recursive_doubling_max_bytes = config.recursive_doubling_max_bytes;
  selection.tuning.segment_bytes = config.segment_bytes;
  selection.tuning.streaming_bytes = config.streaming_bytes;
  selection.tuning.tile_stores = stores_of(config.tile_stores);
  if (waiting.spin.count() > 0) selection.tuning.spin = base::spin_pauses_in(kInnerSpin);
  selection.tuning.isa = kernels::best_isa();
  if (config.kernel_isa != "auto") {
    bool known = false;
    for (const kernels::Isa isa :
         {kernels::Isa::kScalar, kernels::Isa::kAvx2, kernels::Isa::kAvx512}) {
      if (config.kernel_isa != kernels::name_of(isa)) continue;
      known = true;
      selection.tuning.isa = isa;
    }
    if (!known || !kernels::isa_supported(selection.tuning.isa)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "kernel_isa '" + config.kernel_isa +
                      "' is not available on this processor; the widest one here is '" +
                      kernels::name_of(kernels::best_isa()) + "'");
    }
  }
  collectives::check_selection(selection);
  return selection;
}

void* make_fork_canary() {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(ErrorCode::kSystem, "mmap of one page failed");
  madvise(memory, page, MADV_WIPEONFORK);
  *static_cast<volatile char*>(memory) = 1;
  return memory;
}

std::shared_ptr<OutputCache> make_output_cache(transport::Transport& transport,
                                               const base::Config& config) {
  const transport::HostWindow* const window = transport.window();
  if (window == nullptr || !config.shared_outputs || config.output_cache_bytes == 0) {
    return std::make_shared<OutputCache>(config.output_cache_bytes);
  }
  const std::size_t largest =
      transport::ResultMemory::largest(config.streaming_bytes, window->ranks());
  return std::make_shared<OutputCache>(config.output_cache_bytes, window->results(), largest);
}

}  // namespace

Engine::Engine(std::unique_ptr<transport::Transport> transport, Topology topology,
               const base::Config& config, const base::Waiting& waiting)
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
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  if (!shut_down_.load()) shutdown();
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

// --- callers --------------------------------------------------------------------------------------------------------

OutputCache::Block Engine::new_output(std::size_t bytes) const {
  require_usable();
  // After a failure a rank that does not know of it yet may still store into results of the last operations.
  return shared_.outputs->get(bytes, /*open=*/!shared_.failure.happened());
}

std::unique_ptr<ArenaDraft> Engine::create_arena(std::int32_t set, const std::string& kind,
                                                 std::size_t bytes) {
  require_usable();
  const auto info = shared_.sets.find(set);
  if (!info || info->index < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "process set " + std::to_string(set) +
                    " does not exist or does not include this rank: no arena can be made for it");
  }
  if (bytes == 0) throw Error(ErrorCode::kInvalidArgument, "an arena needs at least one byte");
  const std::string& allowed = shared_.config.shared_memory;
  if (allowed != "auto" && allowed != kind) {
    throw Error(ErrorCode::kUnsupported,
                "HVDLITE_SHARED_MEMORY=" + allowed + " rules out an arena in " + kind);
  }
  for (const int member : *info->members) {
    if (transport_->host_of(member) == transport_->host_of(topology_.rank)) continue;
    throw Error(ErrorCode::kUnsupported, "the ranks of process set " + std::to_string(set) +
                                             " are on several hosts and cannot share an arena");
  }
  if (!info->shares_memory) {
    throw Error(ErrorCode::kUnsupported,
                "the ranks of process set " + std::to_string(set) +
                    " have no channel through shared memory (the machine gives none, or too many "
                    "process sets use it already), without which an arena is of no use");
  }
  const bool memfd = kind == "memfd";
  if (!memfd && kind != "shm") {
    throw Error(ErrorCode::kInvalidArgument,
                "unknown kind of shared memory '" + kind + "'; known: memfd, shm");
  }
  // Ids of different ranks never meet, and no rank uses one twice.
  const std::int64_t id = (std::int64_t{topology_.rank} << 32) | (arenas_created_.fetch_add(1) + 1);
  using Kind = transport::SharedMemory::Kind;
  return std::make_unique<ArenaDraft>(shared_.arenas, info->id,
                                      static_cast<int>(info->members->size()), info->index, id,
                                      memfd ? Kind::kMemfd : Kind::kShm, bytes);
}

// --- the engine thread ----------------------------------------------------------------------------------------------

void Engine::run() {
  base::name_this_thread("hvdlite");
  base::sharpen_timers();
  Clock::time_point moved_at = shared_.time.now();
  bool moved = false;
  bool moving_data = false;
  bool unrung = false;
  while (!stop_.load(std::memory_order_acquire)) {
    const std::uint32_t kicked = kick_.value();
    if (waiting_callers_.load(std::memory_order_seq_cst) > 0 || !try_take_token()) {
      kick_.wait(kicked, kStandAside);
      continue;
    }
    // While it listens, those who ring it pay for it: not before a pass that will probably find something to do.
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

// Who drives gives the token away as it sees the claim: it is rung for, again and again, since it may have looked just before
// it fell asleep. Nobody else takes it meanwhile but the engine thread, for a pass.
void Engine::take_token_or_wait() {
  claims_.fetch_add(1, std::memory_order_seq_cst);
  for (;;) {
    const std::uint32_t seen = shared_.event.value();
    if (try_take_token()) break;
    transport_->ring(transport_->rank());
    shared_.event.wait(seen, microseconds(1000));
  }
  claims_.fetch_sub(1, std::memory_order_seq_cst);
}

// With the token.
void Engine::drive_until(bool (Engine::*done)(), double seconds) {
  const Clock::time_point deadline = shared_.time.now() + base::from_seconds(seconds);
  Stillness still;
  while (!(this->*done)() && shared_.time.now() < deadline) {
    pass_or_pause(&still, deadline, microseconds(1000));
  }
}

void Engine::shutdown() {
  if (shut_down_.exchange(true)) return;
  shared_.watchdog.close();
  if (!usable_in_this_process()) {
    thread_.detach();  // it does not exist here
    shared_.timeline.abandon();
    return;
  }
  waiting_callers_.fetch_add(1,
                             std::memory_order_seq_cst);  // the engine thread stands aside for good
  take_token_or_wait();
  // The others count on this rank for what is agreed, so the limit is for standing still.
  std::uint64_t moved = 0;
  do {
    moved = transport_->activity();
    drive_until(&Engine::drained, shared_.config.failure_linger);
  } while (!drained() && transport_->activity() != moved);
  drive_until(&Engine::said_goodbye, kFlushSeconds);
  drive_until(&Engine::drained, kFlushSeconds);
  cycle_.end_all({ErrorCode::kAborted, kShutDownHere});
  // The token is not given back: nobody shall drive what is closed.
  closed_.store(true, std::memory_order_release);
  shared_.event.bump();
  tell(std::exchange(shared_.to_tell, {}));
  stop_.store(true, std::memory_order_release);
  kick_.bump();
  transport_->ring(transport_->rank());
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
  waiting_callers_.fetch_add(1, std::memory_order_seq_cst);
  take_token_or_wait();
  if (!shared_.failure.happened()) {
    cycle_.raise_failure(cause);
    drive_until(&Engine::seen_by_all, shared_.config.failure_linger);
  }
  give_token_back();
  waiting_callers_.fetch_sub(1, std::memory_order_seq_cst);
}

std::string Engine::failure_cause() const {
  return shared_.failure.happened() ? shared_.failure.status().message : std::string();
}

}  // namespace hvdlite::engine
