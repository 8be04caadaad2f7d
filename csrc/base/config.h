// The engine's knobs and their defaults, as a plain struct. It has one member for each line of knobs.inc; hvdlite/knobs.py
// documents the knobs. The C ABI (c_api/c_api.cc) fills the struct.
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
