// The engine's knobs as a plain struct with their defaults, one member for each line of knobs.inc, which hvdlite/knobs.py
// documents. The C ABI fills it.
// Thread: constant after creation. Owns: strings. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <string>

#include "base/log.h"

namespace hvdlite::base {

namespace knob {  // a knob's type by its word in knobs.inc
using count = std::size_t;
using number = double;
using flag = bool;
using text = std::string;
using level = LogLevel;
}  // namespace knob

struct Config {
#define HVDLITE_KNOB(type, name, value) knob::type name{value};
#include "hvdlite/knobs.inc"
#undef HVDLITE_KNOB
};

}  // namespace hvdlite::base
