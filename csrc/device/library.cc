// Why several candidates: a library may be in the process already (torch brings its own NCCL), in a package of PyPI, or in the
// system's folders. One that is in the process comes first, because two copies of NCCL take memory and threads twice. An
// example of NCCL's candidates, as hvdlite/gpu.py lists them:
//
//    +libnccl.so.2                                        only if the process has loaded a library of this name
//    /usr/lib/python3/nvidia/nccl/lib/libnccl.so.2        this file
//    libnccl.so.2                                         where the dynamic linker looks
//
// dlopen treats the three in different ways. A name with a slash is a path. The + stands for the flag RTLD_NOLOAD, with which
// dlopen gives only a library that the process has loaded already.
//
// No library is closed, so a library that loads() has opened stays in the process, even if it is not used.
#include "device/library.h"

#include <dlfcn.h>

#include <utility>

#include "base/error.h"

namespace hvdlite::device {

using base::Error;
using base::ErrorCode;

namespace {

std::string why_not() {
  const char* text = dlerror();
  return text != nullptr ? text : "no reason given";
}

struct Opened {
  std::string path;
  void* handle;
};

// RTLD_NOW: if the candidate calls a function that no library has, dlopen fails, and the next candidate is tried. With
// RTLD_LAZY the first call of that function would end the process. RTLD_LOCAL: libraries that are loaded later, such as a
// framework's, do not use the candidate's functions instead of those of their own version.
Opened open(const std::string& candidate) {
  const bool only_if_loaded = candidate.front() == '+';
  std::string path = only_if_loaded ? candidate.substr(1) : candidate;
  void* const handle =
      dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | (only_if_loaded ? RTLD_NOLOAD : 0));
  return {std::move(path), handle};
}

}  // namespace

// Example: "+libnccl.so.2::/opt/libnccl.so.2" gives two candidates.
Candidates parse_candidates(std::string_view text) {
  Candidates candidates;
  while (!text.empty()) {
    const std::size_t colon = text.find(':');
    const std::string_view one = text.substr(0, colon);
    if (!one.empty()) candidates.emplace_back(one);
    text = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  }
  return candidates;
}

bool loads(const std::string& candidate) { return open(candidate).handle != nullptr; }

// path_ is the name without the +. The constructor calls dlerror() before the next dlopen, which replaces the text.
Library::Library(const char* what, const Candidates& candidates, const char* knob) : what_(what) {
  std::string tried;
  for (const std::string& candidate : candidates) {
    Opened opened = open(candidate);
    path_ = std::move(opened.path);
    handle_ = opened.handle;
    if (handle_ != nullptr) return;
    const std::string why = why_not();
    tried +=
        "\n  " + path_ + ": " + (candidate.front() == '+' ? "not in this process so far" : why);
  }
  throw Error(ErrorCode::kUnsupported, std::string(what) + " cannot be loaded; " + knob +
                                           " says where to look" +
                                           (tried.empty() ? ", and is empty" : "; tried:" + tried));
}

// No function that hvdlite calls lies at address 0, so null always means that the symbol is missing.
void* Library::require(const char* symbol) const {
  void* const address = dlsym(handle_, symbol);
  if (address == nullptr) {
    throw Error(ErrorCode::kUnsupported, std::string(what_) + " (" + path_ + ") has no " + symbol +
                                             "; it is too old or another library");
  }
  return address;
}

}  // namespace hvdlite::device
