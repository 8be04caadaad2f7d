// The C ABI of hvdlite.h over Engine (the parts for tests are in c_api_kernels.cc and c_api_simulate.cc).

#include "engine/c_api.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/engine.h"
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

struct hvdlite_engine {
  std::unique_ptr<hvdlite::engine::Engine> engine;
};

namespace hvdlite::engine {
namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

Topology topology_of(const transport::MpiWorld& world) {
  return {world.rank,       world.size,       world.local_rank,    world.local_size,
          world.cross_rank, world.cross_size, world.is_homogeneous};
}

std::string or_auto(const char* text) { return text != nullptr ? text : "auto"; }

base::Config to_config(const hvdlite_config* from) {
  base::Config config;
  if (from == nullptr) return config;
  require(from->struct_size == sizeof(hvdlite_config),
          "hvdlite_config was compiled for another version of hvdlite");
  config.fusion_threshold = static_cast<std::size_t>(from->fusion_threshold);
  config.cycle_time_ms = from->cycle_time_ms;
  config.cache_capacity = static_cast<std::size_t>(from->cache_capacity);
  config.segment_bytes = static_cast<std::size_t>(from->segment_bytes);
  config.recursive_doubling_max_bytes =
      static_cast<std::size_t>(from->recursive_doubling_max_bytes);
  config.message_split_bytes = static_cast<std::size_t>(from->message_split_bytes);
  config.spin_us = from->spin_us;
  config.deadlock_timeout = from->deadlock_timeout;
  config.failure_linger = from->failure_linger;
  config.flight_recorder_size = static_cast<std::size_t>(from->flight_recorder_size);
  config.deterministic = from->deterministic != 0;
  config.log_level = static_cast<base::LogLevel>(from->log_level);
  config.log_timestamps = from->log_timestamps != 0;
  config.shared_memory = or_auto(from->shared_memory);
  config.kernel_isa = or_auto(from->kernel_isa);
  config.allreduce_algorithm = or_auto(from->allreduce_algorithm);
  config.reducescatter_algorithm = or_auto(from->reducescatter_algorithm);
  config.allgatherv_algorithm = or_auto(from->allgatherv_algorithm);
  config.broadcast_algorithm = or_auto(from->broadcast_algorithm);
  config.alltoallv_algorithm = or_auto(from->alltoallv_algorithm);
  config.barrier_algorithm = or_auto(from->barrier_algorithm);
  return config;
}

template <typename Enum>
Enum checked(std::int32_t code, int limit, const char* what) {
  require(code >= 0 && code < limit, what);
  return static_cast<Enum>(code);
}

Submission to_submission(const hvdlite_request& from) {
  Submission submission;
  Request& request = submission.request;
  require(from.name != nullptr && from.name[0] != '\0', "a request needs a name");
  request.name = from.name;
  request.kind = checked<base::OpKind>(from.kind, base::kNumOpKinds, "unknown kind of operation");
  request.dtype = checked<base::DType>(from.dtype, base::kNumDTypes, "unknown dtype");
  request.op = checked<base::ReduceOp>(from.op, static_cast<int>(base::ReduceOp::kProduct) + 1,
                                       "unknown reduce op");
  request.set.id = from.process_set;
  request.absent = (from.flags & HVDLITE_FLAG_ABSENT) != 0;
  request.root = from.root;
  request.device = from.device;
  request.layout = from.layout;
  request.prescale = from.prescale;
  request.postscale = from.postscale;
  if (from.group != nullptr) request.group = from.group;
  request.group_size = request.group.empty() ? 0 : from.group_size;
  request.group_index = request.group.empty() ? 0 : from.group_index;
  if (from.ndim > 0) request.shape.assign(from.shape, from.shape + from.ndim);
  if (from.num_splits > 0) request.splits.assign(from.splits, from.splits + from.num_splits);
  request.arena = from.arena;
  submission.input = from.input;
  submission.output = from.output;
  return submission;
}

int adopt(std::unique_ptr<Engine> engine, hvdlite_engine** out) {
  *out = new hvdlite_engine{std::move(engine)};
  return 0;
}

char* copy_text(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace

Engine& alive(hvdlite_engine* handle) {
  require(handle != nullptr && handle->engine, "no engine");
  return *handle->engine;
}

void set_last_error(const std::string& message) { last_error() = message; }

}  // namespace hvdlite::engine

using namespace hvdlite::engine;  // the functions below are the outermost layer

int hvdlite_abi_version(void) { return HVDLITE_ABI_VERSION; }
const char* hvdlite_version(void) { return HVDLITE_VERSION; }
const char* hvdlite_last_error(void) { return last_error().c_str(); }

const char* hvdlite_dtype_name(int dtype) {
  if (dtype < 0 || dtype >= hvdlite::base::kNumDTypes) return nullptr;
  return hvdlite::base::name_of(static_cast<hvdlite::base::DType>(dtype)).data();
}

void hvdlite_config_init(hvdlite_config* config) {
  const hvdlite::base::Config defaults;
  *config = hvdlite_config{sizeof(hvdlite_config),
                           static_cast<int64_t>(defaults.fusion_threshold),
                           defaults.cycle_time_ms,
                           static_cast<int64_t>(defaults.cache_capacity),
                           static_cast<int64_t>(defaults.segment_bytes),
                           static_cast<int64_t>(defaults.recursive_doubling_max_bytes),
                           static_cast<int64_t>(defaults.message_split_bytes),
                           defaults.spin_us,
                           defaults.deadlock_timeout,
                           defaults.failure_linger,
                           static_cast<int64_t>(defaults.flight_recorder_size),
                           defaults.deterministic,
                           static_cast<int32_t>(defaults.log_level),
                           defaults.log_timestamps,
                           "auto",
                           "auto",
                           "auto",
                           "auto",
                           "auto",
                           "auto",
                           "auto",
                           "auto"};
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
    adopt(std::make_unique<Engine>(
              std::move(transport), topology_of(hvdlite::transport::place(leaders, rank)), knobs,
              hvdlite::base::from_seconds(knobs.spin_us > 0 ? knobs.spin_us * 1e-6 : 0)),
          out);
  });
}

int hvdlite_engine_create_mpi(const char* shim_path, const void* comm_address,
                              const hvdlite_config* config, hvdlite_engine** out) {
  return guarded([&] {
    require(shim_path != nullptr && shim_path[0] != '\0', "no MPI shim was given");
    require(comm_address != nullptr, "no communicator was given");
    const hvdlite::base::Config knobs = to_config(config);
    hvdlite::transport::MpiWorld world = hvdlite::transport::open_mpi(
        shim_path, comm_address, knobs, hvdlite::engine::Ledger::bytes({}));
    const Topology topology = topology_of(world);
    adopt(std::make_unique<Engine>(std::move(world.transport), topology, knobs, world.spin), out);
  });
}

int hvdlite_engine_shutdown(hvdlite_engine* engine) {
  return guarded([&] { alive(engine).shutdown(); });
}

void hvdlite_engine_destroy(hvdlite_engine* engine) {
  if (engine == nullptr) return;
  // A forked child owns a copy of an engine whose thread and transport are its parent's: leave it alone.
  if (!engine->engine->usable_in_this_process()) return;
  delete engine;
}

int hvdlite_engine_topology(const hvdlite_engine* engine, hvdlite_topology* out) {
  return guarded([&] {
    require(engine != nullptr, "no engine");
    const Topology& topology = engine->engine->topology();
    *out = {topology.rank,       topology.size,       topology.local_rank,    topology.local_size,
            topology.cross_rank, topology.cross_size, topology.is_homogeneous};
  });
}

int hvdlite_submit(hvdlite_engine* engine, const hvdlite_request* requests, size_t count, int wake,
                   int64_t* handles) {
  return guarded([&] {
    std::vector<Submission> submissions;
    submissions.reserve(count);
    for (size_t i = 0; i < count; ++i) submissions.push_back(to_submission(requests[i]));
    const std::vector<int64_t> given = alive(engine).submit(std::move(submissions), wake != 0);
    std::memcpy(handles, given.data(), count * sizeof(int64_t));
  });
}

int hvdlite_request_hashes(const hvdlite_request* request, uint64_t* name, uint64_t* content) {
  return guarded([&] {
    Request built = to_submission(*request).request;
    built.seal();
    *name = built.name_hash;
    *content = built.content_hash;
  });
}

int hvdlite_poll(hvdlite_engine* engine, int64_t handle, int* done) {
  return guarded([&] { *done = alive(engine).poll(handle) ? 1 : 0; });
}

int hvdlite_wait(hvdlite_engine* engine, int64_t handle, double timeout_s, int* done) {
  return guarded([&] {
    *done = alive(engine).wait(handle, hvdlite::base::from_seconds(timeout_s)) ? 1 : 0;
    if (*done == 0) return;
    const CompletionPtr completion = engine->engine->completion(handle);
    if (!completion->status.ok()) throw Error(completion->status.code, completion->status.message);
  });
}

int hvdlite_result_get(hvdlite_engine* engine, int64_t handle, hvdlite_result* out) {
  return guarded([&] {
    const CompletionPtr completion = alive(engine).completion(handle);
    require(completion->done.load(std::memory_order_acquire) != 0,
            "the operation has not ended yet; wait for it first");
    *out = {completion->contributors,
            completion->value,
            completion->value,
            static_cast<int32_t>(completion->shape.size()),
            completion->shape.data(),
            static_cast<int32_t>(completion->received_splits.size()),
            completion->received_splits.data(),
            static_cast<int64_t>(completion->data_bytes),
            completion->data};
  });
}

void* hvdlite_result_take_data(hvdlite_engine* engine, int64_t handle) {
  void* data = nullptr;
  guarded([&] { data = std::exchange(alive(engine).completion(handle)->data, nullptr); });
  return data;
}

void hvdlite_free(void* data) { std::free(data); }

int hvdlite_release(hvdlite_engine* engine, int64_t handle) {
  return guarded([&] { alive(engine).release(handle); });
}

int hvdlite_process_set_ranks(hvdlite_engine* engine, int32_t id, int32_t* ranks, int32_t capacity,
                              int32_t* count) {
  return guarded([&] {
    const auto set = alive(engine).sets().find(id);
    require(set.has_value(), "Process set provided does not exist, or has not been registered");
    *count = static_cast<int32_t>(set->members->size());
    for (int32_t i = 0; i < *count && i < capacity; ++i) {
      ranks[i] = (*set->members)[static_cast<size_t>(i)];
    }
  });
}

int hvdlite_process_set_ids(hvdlite_engine* engine, int32_t* ids, int32_t capacity,
                            int32_t* count) {
  return guarded([&] {
    const std::vector<int32_t> known = alive(engine).sets().ids();
    *count = static_cast<int32_t>(known.size());
    for (int32_t i = 0; i < *count && i < capacity; ++i) ids[i] = known[static_cast<size_t>(i)];
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

char* hvdlite_flight_record(hvdlite_engine* engine) {
  char* text = nullptr;
  guarded([&] { text = copy_text(alive(engine).flight_record()); });
  return text;
}

int hvdlite_get_counters(hvdlite_engine* engine, hvdlite_counters* out) {
  return guarded([&] {
    const Counters& counters = alive(engine).counters();
    *out = {counters.submitted,
            counters.completed,
            counters.failed,
            counters.control_messages_sent,
            counters.control_bytes_sent,
            counters.fused_ops,
            counters.cache_hits,
            counters.cache_misses,
            counters.agreed_in_memory,
            counters.data_bytes_sent,
            counters.arena_ops};
  });
}
