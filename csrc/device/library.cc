// Why several candidates: a driver or NCCL may be in the process already (torch brings its own NCCL), in a package of PyPI, or
// in the system's folders. "+NAME" takes only the first of these. Two copies of NCCL in one process take memory and threads
// twice.
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

// RTLD_LOCAL: the library's names do not hide those of another version that a framework has loaded.
Opened open(const std::string& candidate) {
  const bool only_if_loaded = candidate.front() == '+';
  std::string path = only_if_loaded ? candidate.substr(1) : candidate;
  void* const handle =
      dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | (only_if_loaded ? RTLD_NOLOAD : 0));
  return {std::move(path), handle};
}

}  // namespace

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

void* Library::require(const char* symbol) const {
  void* const address = dlsym(handle_, symbol);
  if (address == nullptr) {
    throw Error(ErrorCode::kUnsupported, std::string(what_) + " (" + path_ + ") has no " + symbol +
                                             "; it is too old or another library");
  }
  return address;
}

}  // namespace hvdlite::device
