#include "config.h"

#include <nanobind/stl/string.h>

#include <type_traits>
#include <variant>

namespace hvdlite::python {

namespace {

using Member = std::variant<std::int64_t hvdlite_config::*, std::int32_t hvdlite_config::*,
                            double hvdlite_config::*, const char* hvdlite_config::*>;

struct Field {
  const char* name;
  Member member;
};

#define HVDLITE_FIELD(name) {#name, &hvdlite_config::name}
const Field kFields[] = {
    HVDLITE_FIELD(fusion_threshold),
    HVDLITE_FIELD(cycle_time_ms),
    HVDLITE_FIELD(cache_capacity),
    HVDLITE_FIELD(segment_bytes),
    HVDLITE_FIELD(recursive_doubling_max_bytes),
    HVDLITE_FIELD(tile_bytes),
    HVDLITE_FIELD(streaming_bytes),
    HVDLITE_FIELD(message_split_bytes),
    HVDLITE_FIELD(remote_message_bytes),
    HVDLITE_FIELD(spin_us),
    HVDLITE_FIELD(deadlock_timeout),
    HVDLITE_FIELD(stall_check_time_seconds),
    HVDLITE_FIELD(stall_shutdown_time_seconds),
    HVDLITE_FIELD(failure_linger),
    HVDLITE_FIELD(peer_timeout),
    HVDLITE_FIELD(flight_recorder_size),
    HVDLITE_FIELD(flight_recorder_folder),
    HVDLITE_FIELD(output_cache_bytes),
    HVDLITE_FIELD(shared_outputs),
    HVDLITE_FIELD(deterministic),
    HVDLITE_FIELD(log_level),
    HVDLITE_FIELD(log_timestamps),
    HVDLITE_FIELD(shared_memory),
    HVDLITE_FIELD(tile_stores),
    HVDLITE_FIELD(kernel_isa),
    HVDLITE_FIELD(allreduce_algorithm),
    HVDLITE_FIELD(reducescatter_algorithm),
    HVDLITE_FIELD(allgatherv_algorithm),
    HVDLITE_FIELD(broadcast_algorithm),
    HVDLITE_FIELD(alltoallv_algorithm),
    HVDLITE_FIELD(barrier_algorithm),
    HVDLITE_FIELD(gpu_route),
    HVDLITE_FIELD(cuda_library),
    HVDLITE_FIELD(nccl_library),
    HVDLITE_FIELD(nvrtc_library),
    HVDLITE_FIELD(kernel_cache),
    HVDLITE_FIELD(gpu_cache_bytes),
    HVDLITE_FIELD(nccl_float32_sums),
    HVDLITE_FIELD(check_finite),
    HVDLITE_FIELD(join_refuses_others),
};
#undef HVDLITE_FIELD

template <typename Value>
constexpr const char* kTypeName = std::is_same_v<Value, std::int64_t>   ? "a 64-bit integer"
                                  : std::is_same_v<Value, std::int32_t> ? "a 32-bit integer"
                                  : std::is_same_v<Value, double>       ? "a number"
                                                                        : "a string";

hvdlite_config defaults() {
  hvdlite_config config{};
  config.struct_size = sizeof(config);
  hvdlite_config_init(&config);
  return config;
}

nb::dict config_fields() {
  const hvdlite_config config = defaults();
  nb::dict fields;
  for (const Field& field : kFields) {
    fields[field.name] =
        std::visit([&](auto member) { return nb::cast(config.*member); }, field.member);
  }
  return fields;
}

}  // namespace

Config::Config(nb::handle mapping) : config_(defaults()) {
  nb::dict entries;
  entries.update(mapping);
  for (auto [key, value] : entries) set(nb::cast<std::string>(nb::str(key)), value);
}

void Config::set(const std::string& key, nb::handle value) {
  for (const Field& field : kFields) {
    if (key != field.name) continue;
    std::visit(
        [&](auto member) {
          using Value = std::remove_reference_t<decltype(config_.*member)>;
          using Cast = std::conditional_t<std::is_pointer_v<Value>, std::string, Value>;
          Cast converted{};
          if (!nb::try_cast(value, converted)) {
            const std::string shown = nb::repr(value).c_str();
            throw nb::value_error(
                (key + " must be " + kTypeName<Value> + ", not " + shown).c_str());
          }
          if constexpr (std::is_pointer_v<Value>) {
            config_.*member = strings_.emplace_back(std::move(converted)).c_str();
          } else {
            config_.*member = converted;
          }
        },
        field.member);
    return;
  }
  throw nb::value_error(("'" + key + "' is no knob of the engine").c_str());
}

void register_config(nb::module_& module) {
  module.def(
      "config_fields", &config_fields,
      "The engine's knobs and their native defaults (a test compares them with hvdlite.config).");
}

}  // namespace hvdlite::python
