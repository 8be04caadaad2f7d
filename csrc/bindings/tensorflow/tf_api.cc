#include "tf_api.h"

#include "loaded_library.h"

namespace hvdlite::tensorflow {
namespace {

Api look_up() {
  Api found;
  const LoadedLibrary library(kLibrary);
  if (!library.is_there()) {
    found.problem =
        std::string(kLibrary) + " is not loaded in this process: import tensorflow first";
    return found;
  }
#define HVDLITE_TF_FIND(result, name, parameters) \
  found.name = library.find<result(*) parameters>("TF_" #name);
#define HVDLITE_TF_REQUIRE(result, name, parameters)                           \
  HVDLITE_TF_FIND(result, name, parameters)                                    \
  if (found.name == nullptr) {                                                 \
    found.problem += found.problem.empty() ? "TensorFlow lacks TF_" : ", TF_"; \
    found.problem += #name;                                                    \
  }
  HVDLITE_TF_FUNCTIONS(HVDLITE_TF_REQUIRE)
  HVDLITE_TF_OPTIONAL_FUNCTIONS(HVDLITE_TF_FIND)
#undef HVDLITE_TF_REQUIRE
#undef HVDLITE_TF_FIND
  return found;
}

}  // namespace

const Api& api() {
  static const Api found = look_up();
  return found;
}

}  // namespace hvdlite::tensorflow
