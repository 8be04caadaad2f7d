#include "tf_api.h"

#include <dlfcn.h>

namespace hvdlite::tensorflow {
namespace {

constexpr const char* kLibrary = "libtensorflow_framework.so.2";

Api look_up() {
  Api found;
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    found.problem =
        std::string(kLibrary) + " is not loaded in this process: import tensorflow first";
    return found;
  }
#define HVDLITE_TF_FIND(result, name, parameters) \
  found.name = reinterpret_cast<result(*) parameters>(dlsym(library, "TF_" #name));
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
  dlclose(library);  // TensorFlow's own reference stays for good
  return found;
}

}  // namespace

const Api& api() {
  static const Api found = look_up();
  return found;
}

}  // namespace hvdlite::tensorflow
