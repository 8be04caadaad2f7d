// A shared library opened at run time: the first of several candidates that can be loaded.
// Thread: any. Owns: the handle, for ever (libraries of a driver do not support unloading). Blocks: on loading. Throws:
// Error(Unsupported), which lists each candidate with its failure, or names the missing symbol.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hvdlite::device {

// File names, tried in order. "+NAME" means only a library that the process has loaded already.
using Candidates = std::vector<std::string>;

// Parses a knob's value: names separated by colons. Empty names are ignored.
Candidates parse_candidates(std::string_view text);

// Loads the candidate, and returns whether that worked.
bool loads(const std::string& candidate);

class Library {
 public:
  // knob: the variable with the candidates, for the error's text.
  Library(const char* what, const Candidates& candidates, const char* knob);
  const std::string& path() const { return path_; }
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
