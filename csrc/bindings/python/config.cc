#include "config.h"

#include <nanobind/stl/string.h>

#include <type_traits>
#include <variant>

namespace hvdlite::python {

namespace {

using Member = std::variant<std::int64_t hvdlite_config::*, std::int32_t hvdlite_config::*,
                            double hvdlite_config::*, const char* hvdlite_config::*>;

struct ConfigField {
  const char* name;
  Member member;
};

const ConfigField kFields[] = {
#define HVDLITE_KNOB(type, name, value) {#name, &hvdlite_config::name},
#include "hvdlite/knobs.inc"
#undef HVDLITE_KNOB
};

template <typename Value>
constexpr const char* kTypeName = std::is_same_v<Value, std::int64_t>   ? "a 64-bit integer"
                                  : std::is_same_v<Value, std::int32_t> ? "a 32-bit integer"
                                  : std::is_same_v<Value, double>       ? "a number"
                                                                        : "a string";

hvdlite_config defaults() {
  hvdlite_config config{};
  hvdlite_config_init(&config, sizeof(config));
  return config;
}

nb::dict config_fields() {
  const hvdlite_config config = defaults();
  nb::dict fields;
  for (const ConfigField& field : kFields) {
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
  for (const ConfigField& field : kFields) {
    if (key != field.name) continue;
    std::visit(
        [&](auto member) {
          using Value = std::remove_reference_t<decltype(config_.*member)>;
          using Cast = std::conditional_t<std::is_pointer_v<Value>, Utf8, Value>;
          Cast converted{};
          if (!nb::try_cast(value, converted)) {
            const std::string shown = nb::repr(value).c_str();
            throw nb::value_error(
                (key + " must be " + kTypeName<Value> + ", not " + shown).c_str());
          }
          if constexpr (std::is_pointer_v<Value>) {
            config_.*member = strings_.emplace_back(std::move(converted.bytes)).c_str();
          } else {
            config_.*member = converted;
          }
        },
        field.member);
    return;
  }
  throw nb::value_error(("'" + key + "' is no knob of the engine").c_str());
}

void register_config(nb::module_& module) { module.def("config_fields", &config_fields); }

}  // namespace hvdlite::python
