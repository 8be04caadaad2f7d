// A library of TensorFlow that this process has loaded. It is open while functions are looked up. The functions stay valid for
// ever, because TensorFlow keeps the library loaded.
// Thread: any. Owns: a reference to the library. Blocks: no. Throws: nothing.
#pragma once

#include <dlfcn.h>

namespace hvdlite::tensorflow {

class LoadedLibrary {
 public:
  explicit LoadedLibrary(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_NOLOAD)) {}
  LoadedLibrary(const LoadedLibrary&) = delete;
  LoadedLibrary& operator=(const LoadedLibrary&) = delete;
  ~LoadedLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }

  bool is_there() const { return handle_ != nullptr; }

  // Null if the library is not loaded or has no such function.
  template <class Function>
  Function find(const char* symbol) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(handle_, symbol));
  }

 private:
  void* handle_;
};

}  // namespace hvdlite::tensorflow
