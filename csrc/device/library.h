// A shared library opened at run time: one of several candidates, the first that can be loaded.
// Thread: any. Owns: the handle, for good (libraries of a driver do not like to be unloaded). Blocks: on loading.
// Throws: Error(Unsupported) that lists what was tried and why each failed, or names the symbol that is missing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hvdlite::device {

// Where to look, in order. "+NAME" means a library that is in the process already, and nothing else.
using Candidates = std::vector<std::string>;

// As the knobs give them: separated by colons; empty ones do not count.
Candidates parse_candidates(std::string_view text);

// Can it be loaded, and is it now?
bool loads(const std::string& candidate);

class Library {
 public:
  // knob: the variable that says where to look, for the error's text.
  Library(const char* what, const Candidates& candidates, const char* knob);
  const std::string& path() const { return path_; }
  // Null if it has no such symbol.
  void* find(const char* symbol) const;
  template <typename Function>
  void require(Function** function, const char* symbol) const {
    *function = reinterpret_cast<Function*>(require(symbol));
  }

 private:
  void* require(const char* symbol) const;

  const char* what_;
  std::string path_;
  void* handle_ = nullptr;
};

}  // namespace hvdlite::device
