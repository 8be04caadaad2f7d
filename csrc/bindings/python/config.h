// The engine's knobs: a Python mapping to hvdlite_config, whose field names are the keys.
// Thread: with the GIL held. Owns: the strings the config points to. Blocks: no. Throws: ValueError naming the key.
#pragma once

#include <list>
#include <string>

#include "binding.h"

namespace hvdlite::python {

class Config {
 public:
  // Starts from the native defaults. A key that is no field, or a value that does not fit, is a ValueError.
  explicit Config(nb::handle mapping);
  const hvdlite_config* get() const { return &config_; }

 private:
  void set(const std::string& key, nb::handle value);

  hvdlite_config config_{};
  std::list<std::string> strings_;
};

}  // namespace hvdlite::python
