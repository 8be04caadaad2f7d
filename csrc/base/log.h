// Log lines on stderr: one line is one write, so lines of several ranks do not mix.
// Thread: any. Owns: nothing. Blocks: on the write. Throws: nothing.
#pragma once

#include <string>
#include <string_view>

namespace hvdlite::base {

enum class LogLevel : int { kTrace = 0, kDebug = 1, kInfo = 2, kWarning = 3, kError = 4, kOff = 5 };

class Logger {
 public:
  Logger() = default;
  Logger(LogLevel level, bool timestamps, int rank, int size)
      : level_(level), timestamps_(timestamps), rank_(rank), size_(size) {}

  bool enabled(LogLevel level) const { return level >= level_; }
  // subsystem: init, control, cache, fusion, coll, transport, device, elastic.
  void write(LogLevel level, std::string_view subsystem, const std::string& message) const;

 private:
  LogLevel level_ = LogLevel::kWarning;
  bool timestamps_ = true;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace hvdlite::base
