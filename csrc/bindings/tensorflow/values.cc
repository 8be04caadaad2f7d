#include <algorithm>
#include <cstdint>
#include <vector>

#include "hvdlite/hvdlite.h"
#include "op_definition.h"
#include "ops.h"
#include "outputs.h"
#include "shapes.h"
#include "status.h"

namespace hvdlite::tensorflow {
namespace {

struct Value {
  int code;
  std::int32_t number;
};

struct ValueKernel {
  Value (*evaluate)(hvdlite_engine* engine, std::int32_t process_set);
  std::int32_t process_set;
};

template <std::int32_t hvdlite_topology::* kField>
Value of_topology(hvdlite_engine* engine, std::int32_t) {
  hvdlite_topology topology{};
  const int code = hvdlite_engine_topology(engine, &topology);
  return {code, topology.*kField};
}

Value size_of_set(hvdlite_engine* engine, std::int32_t process_set) {
  std::int32_t count = 0;
  const int code = hvdlite_process_set_ranks(engine, process_set, nullptr, 0, &count);
  return {code, count};
}

// This rank's place in a process set; -1 outside of it.
Value place_in_set(hvdlite_engine* engine, std::int32_t process_set) {
  hvdlite_topology topology{};
  if (const int code = hvdlite_engine_topology(engine, &topology); code != HVDLITE_OK)
    return {code, -1};
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(topology.size));
  std::int32_t count = 0;
  const int code =
      hvdlite_process_set_ranks(engine, process_set, ranks.data(), topology.size, &count);
  if (code != HVDLITE_OK) return {code, -1};
  const auto end = ranks.begin() + count;
  const auto found = std::find(ranks.begin(), end, topology.rank);
  return {HVDLITE_OK, found == end ? -1 : static_cast<std::int32_t>(found - ranks.begin())};
}

Value is_in_set(hvdlite_engine* engine, std::int32_t process_set) {
  const auto [code, place] = place_in_set(engine, process_set);
  return {code, place >= 0 ? 1 : 0};
}

template <auto kEvaluate>
void* create_value(TF_OpKernelConstruction* construction) {
  const TfStatus status;
  std::int64_t process_set = 0;
  api().OpKernelConstruction_GetAttrInt64(construction, "process_set", &process_set, status);
  if (!status.ok()) api().OpKernelConstruction_Failure(construction, status);
  return new ValueKernel{kEvaluate, static_cast<std::int32_t>(process_set)};
}

void compute_value(void* data, TF_OpKernelContext* context) {
  const auto* kernel = static_cast<const ValueKernel*>(data);
  hvdlite_engine* engine = hvdlite_current_engine();
  const auto [code, number] = engine != nullptr ? kernel->evaluate(engine, kernel->process_set)
                                                : Value{HVDLITE_E_NOT_INITIALIZED, 0};
  if (code != HVDLITE_OK) {
    fail_with_last_error(context, code);
  } else {
    give_number(context, number);
  }
  hvdlite_engine_destroy(engine);
}

void destroy_value(void* kernel) { delete static_cast<ValueKernel*>(kernel); }

template <auto kEvaluate>
void define(const char* name) {
  // The op is stateful; otherwise TensorFlow would evaluate it while it optimises the graph.
  OpDefinition definition(name, true, shape_of_number);
  definition.attribute("process_set: int = 0").output("value", "int32");
  definition.enroll({create_value<kEvaluate>, compute_value, nullptr, destroy_value});
}

}  // namespace

void register_values() {
  define<size_of_set>("HvdliteSize");
  define<is_in_set>("HvdliteProcessSetIncluded");
  define<place_in_set>("HvdliteRank");
  define<of_topology<&hvdlite_topology::local_rank>>("HvdliteLocalRank");
  define<of_topology<&hvdlite_topology::local_size>>("HvdliteLocalSize");
}

}  // namespace hvdlite::tensorflow
