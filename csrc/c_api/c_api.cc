// The C ABI of hvdlite.h over Engine (operations are in operations.cc).

#include "c_api/c_api.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <system_error>

#include "engine/negotiation/ledger.h"
#include "hvdlite/hvdlite.h"
#include "transport/inproc.h"
#include "transport/mpi_env.h"

using hvdlite::base::Error;
using hvdlite::base::ErrorCode;
using hvdlite::engine::guarded;
using hvdlite::engine::require;

struct hvdlite_fabric {
  std::shared_ptr<hvdlite::transport::Fabric> fabric;
  int size;
};

namespace hvdlite::engine {
namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

void take(std::size_t& knob, std::int64_t value) { knob = static_cast<std::size_t>(value); }
void take(double& knob, double value) { knob = value; }
void take(bool& knob, std::int32_t value) { knob = value != 0; }
void take(base::LogLevel& knob, std::int32_t value) { knob = static_cast<base::LogLevel>(value); }
void take(std::string& knob, const char* value) {
  if (value != nullptr) knob = value;
}

base::Config to_config(const hvdlite_config* from) {
  base::Config config;
  if (from == nullptr) return config;
  require(from->struct_size == sizeof(hvdlite_config),
          "hvdlite_config was compiled for another version of hvdlite");
#define HVDLITE_KNOB(type, name, value) take(config.name, from->name);
#include "hvdlite/knobs.inc"
#undef HVDLITE_KNOB
  return config;
}

char* copy_text(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

void give(const std::vector<int32_t>& numbers, int32_t* to, int32_t capacity, int32_t* count) {
  *count = static_cast<int32_t>(numbers.size());
  std::copy_n(numbers.begin(), std::min(*count, capacity), to);
}

int keep(ErrorCode code, const std::string& message) {
  last_error() = message;
  return static_cast<int>(code);
}

int keep_exception() {
  try {
    throw;
  } catch (const Error& error) {
    return keep(error.code(), error.what());
  } catch (const std::system_error& error) {  // std::thread throws it
    return keep(ErrorCode::kSystem, base::no_thread(error).what());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return keep(ErrorCode::kInternal, std::string("unexpected: ") + error.what());
  }
}

}  // namespace

int outcome_of_exception() noexcept {
  try {
    return keep_exception();
  } catch (const std::bad_alloc&) {
    last_error() = "out of memory";  // so short that it needs none
    return HVDLITE_E_SYSTEM;
  }
}

namespace {

constexpr const char* kNotInitialized = "Horovod has not been initialized; use hvd.init().";

// The engine of this process, for callers that have no pointer to it. A fork waits until no thread holds the lock: a child that
// inherits a locked lock would wait for it for ever.
class CurrentEngine {
 public:
  static CurrentEngine& instance() {
    static CurrentEngine engine;
    return engine;
  }
  void set(hvdlite_engine* engine) {
    if (engine != nullptr) ++engine->references;
    {
      const std::lock_guard lock(mutex_);
      std::swap(engine, engine_);
    }
    hvdlite_engine_destroy(engine);
  }
  hvdlite_engine* get() {
    const std::lock_guard lock(mutex_);
    if (engine_ != nullptr) ++engine_->references;
    return engine_;
  }
  bool is(const hvdlite_engine* engine) {
    const std::lock_guard lock(mutex_);
    return engine_ == engine;
  }

 private:
  CurrentEngine() {
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().mutex_.unlock(); });
  }

  std::mutex mutex_;
  hvdlite_engine* engine_ = nullptr;
};

}  // namespace

}  // namespace hvdlite::engine

using namespace hvdlite::engine;  // the functions below are the outermost layer

int hvdlite_abi_version(void) { return HVDLITE_ABI_VERSION; }
const char* hvdlite_version(void) { return HVDLITE_VERSION; }
const char* hvdlite_last_error(void) { return last_error().c_str(); }

const char* hvdlite_dtype_name(int dtype) {
  if (dtype < 0 || dtype >= hvdlite::base::kNumDTypes) return nullptr;
  return hvdlite::base::name_of(static_cast<hvdlite::base::DType>(dtype)).data();
}

void hvdlite_config_init(hvdlite_config* config, size_t struct_size) {
  config->struct_size = struct_size;
  if (struct_size != sizeof(hvdlite_config)) return;
#define HVDLITE_KNOB(type, name, value) config->name = value;
#include "hvdlite/knobs.inc"
#undef HVDLITE_KNOB
}

int hvdlite_fabric_create(int size, const int32_t* hosts, hvdlite_fabric** out) {
  return guarded([&] {
    require(size > 0, "a fabric needs at least one rank");
    hvdlite::transport::FabricShape shape;
    shape.size = size;
    shape.ledger_bytes = hvdlite::engine::Ledger::bytes({});
    if (hosts != nullptr) shape.hosts.assign(hosts, hosts + size);
    *out = new hvdlite_fabric{hvdlite::transport::make_fabric(shape), size};
  });
}

void hvdlite_fabric_destroy(hvdlite_fabric* fabric) { delete fabric; }

int hvdlite_fabric_kill(hvdlite_fabric* fabric, int rank) {
  return guarded([&] { hvdlite::transport::kill(*fabric->fabric, rank); });
}

int hvdlite_engine_create_inproc(hvdlite_fabric* fabric, int rank, const hvdlite_config* config,
                                 hvdlite_engine** out) {
  return guarded([&] {
    require(fabric != nullptr, "no fabric");
    require(rank >= 0 && rank < fabric->size, "rank outside the fabric");
    const hvdlite::base::Config knobs = to_config(config);
    auto transport =
        hvdlite::transport::connect(fabric->fabric, rank, knobs.shared_memory != "off");
    std::vector<int> leaders(static_cast<std::size_t>(fabric->size));
    for (int peer = 0; peer < fabric->size; ++peer) {
      leaders[static_cast<std::size_t>(peer)] = transport->host_of(peer);
    }
    const hvdlite::base::CpuSet cpus = hvdlite::base::allowed_cpus();
    const hvdlite::base::WaitPolicy waiting =
        hvdlite::transport::choose_waiting(knobs, CPU_COUNT(&cpus), fabric->size);
    *out = new hvdlite_engine{std::make_unique<Engine>(
        std::move(transport), hvdlite::transport::place(leaders, rank), knobs, waiting)};
  });
}

int hvdlite_engine_create_mpi(const char* shim_path, const void* comm_address, int takes_comm,
                              const hvdlite_config* config, hvdlite_engine** out) {
  return guarded([&] {
    require(shim_path != nullptr && shim_path[0] != '\0', "no MPI shim was given");
    require(comm_address != nullptr, "no communicator was given");
    const hvdlite::base::Config knobs = to_config(config);
    hvdlite::transport::MpiWorld world = hvdlite::transport::open_mpi(
        shim_path, comm_address, takes_comm != 0, knobs, hvdlite::engine::Ledger::bytes({}));
    *out = new hvdlite_engine{
        std::make_unique<Engine>(std::move(world.transport), world.topology, knobs, world.waiting)};
  });
}

int hvdlite_engine_pause(hvdlite_engine* engine) {
  return guarded([&] { alive(engine).pause(); });
}

int hvdlite_engine_resume(hvdlite_engine* engine) {
  return guarded([&] { alive(engine).resume(); });
}

int hvdlite_engine_shutdown(hvdlite_engine* engine) {
  return guarded([&] {
    Engine& ending = alive(engine);
    if (CurrentEngine::instance().is(engine)) hvdlite_set_current_engine(nullptr);
    ending.shutdown();
  });
}

void hvdlite_set_current_engine(hvdlite_engine* engine) { CurrentEngine::instance().set(engine); }

hvdlite_engine* hvdlite_current_engine(void) {
  hvdlite_engine* engine = CurrentEngine::instance().get();
  if (engine == nullptr) guarded([] { last_error() = kNotInitialized; });
  return engine;
}

void hvdlite_engine_destroy(hvdlite_engine* engine) {
  if (engine == nullptr) return;
  // A forked child has a copy of its parent's engine, whose thread and transport belong to the parent. Leave the copy alone.
  if (!engine->engine->usable_in_this_process()) return;
  if (engine->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete engine;
}

int hvdlite_engine_topology(const hvdlite_engine* engine, hvdlite_topology* out) {
  return guarded([&] {
    require(engine != nullptr, "no engine");
    const Topology& topology = engine->engine->topology();
    *out = {topology.rank,       topology.size,       topology.local_rank,    topology.local_size,
            topology.cross_rank, topology.cross_size, topology.is_homogeneous};
  });
}

int hvdlite_process_set_ranks(hvdlite_engine* engine, int32_t id, int32_t* ranks, int32_t capacity,
                              int32_t* count) {
  return guarded([&] {
    const auto set = alive(engine).sets().find(id);
    require(set.has_value(), "Process set provided does not exist, or has not been registered");
    give(*set->members, ranks, capacity, count);
  });
}

int hvdlite_process_set_ids(hvdlite_engine* engine, int32_t* ids, int32_t capacity,
                            int32_t* count) {
  return guarded([&] { give(alive(engine).sets().ids(), ids, capacity, count); });
}

int hvdlite_timeline_start(hvdlite_engine* engine, const char* path, int64_t max_bytes,
                           int mark_cycles) {
  return guarded([&] {
    require(path != nullptr && max_bytes > 0, "a timeline needs a path and a size limit above 0");
    hvdlite::engine::alive(engine).start_timeline(path, static_cast<size_t>(max_bytes),
                                                  mark_cycles != 0);
  });
}

int hvdlite_timeline_stop(hvdlite_engine* engine) {
  return guarded([&] { hvdlite::engine::alive(engine).stop_timeline(); });
}

int hvdlite_watchdog_wait(hvdlite_engine* engine, int* asked) {
  return guarded([&] {
    require(engine != nullptr && asked != nullptr, "no engine, or nowhere to put the answer");
    *asked = engine->engine->watchdog().wait() ? 1 : 0;
  });
}

int hvdlite_watchdog_tell(hvdlite_engine* engine, const char* text) {
  return guarded([&] {
    require(engine != nullptr && text != nullptr, "no engine, or no text");
    engine->engine->watchdog().tell(text);
  });
}

int hvdlite_stall_exempt(hvdlite_engine* engine, double seconds) {
  return guarded([&] {
    require(seconds >= 0 && seconds <= 1e9, "an exemption lasts between 0 and 1e9 seconds");
    alive(engine).exempt_from_stalls(seconds);
  });
}

int hvdlite_publish_failure(hvdlite_engine* engine, const char* cause) {
  return guarded([&] { alive(engine).publish_failure(cause != nullptr ? cause : "failed"); });
}

const char* hvdlite_failure_cause(hvdlite_engine* engine) {
  thread_local std::string text;
  text.clear();
  guarded([&] { text = alive(engine).failure_cause(); });
  return text.c_str();
}

void hvdlite_free(void* text) { std::free(text); }

void hvdlite_log(int level, int rank, int size, const char* subsystem, const char* text) {
  guarded([&] {
    require(subsystem != nullptr && text != nullptr, "nothing to log");
    const auto as = static_cast<hvdlite::base::LogLevel>(level);
    hvdlite::base::Logger(as, true, rank, size).write(as, subsystem, text);
  });
}

char* hvdlite_flight_record(hvdlite_engine* engine, int64_t ended) {
  char* text = nullptr;
  guarded([&] {
    const auto& recorder = alive(engine).recorder();
    text =
        copy_text(ended < 0 ? recorder.text() : recorder.report(static_cast<std::size_t>(ended)));
  });
  return text;
}

int hvdlite_get_counters(hvdlite_engine* engine, hvdlite_counters* out) {
  return guarded([&] {
    const Counters& counters = alive(engine).counters();
    const Usage::Numbers usage = alive(engine).usage().numbers();
#define HVDLITE_COUNTER(source, name) out->name = source.name;
#include "hvdlite/counters.inc"
#undef HVDLITE_COUNTER
  });
}

int hvdlite_get_lateness(hvdlite_engine* engine, int64_t* operations, int64_t* nanoseconds,
                         int32_t count) {
  return guarded([&] {
    require(operations != nullptr && nanoseconds != nullptr,
            "no memory for the lateness was given");
    const Usage::Lateness lateness = alive(engine).usage().lateness();
    require(static_cast<std::size_t>(count) == lateness.operations.size(),
            "lateness has one number for each rank of the job");
    std::copy(lateness.operations.begin(), lateness.operations.end(), operations);
    std::copy(lateness.nanoseconds.begin(), lateness.nanoseconds.end(), nanoseconds);
  });
}
