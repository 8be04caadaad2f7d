// The engine's knobs: makes an hvdlite_config from a Python mapping, whose keys are the field names.
// Thread: with the GIL held. Owns: the strings to which the config points. Blocks: no. Throws: ValueError, which names the key.
#pragma once

#include <list>
#include <string>

#include "binding.h"

namespace hvdlite::python {

class Config {
 public:
  // Starts from the native defaults. Throws ValueError for a key that is no field, and for a value that does not fit.
  explicit Config(nb::handle mapping);
  const hvdlite_config* get() const { return &config_; }

 private:
  void set(const std::string& key, nb::handle value);

  hvdlite_config config_{};
  std::list<std::string> strings_;
};

}  // namespace hvdlite::python
