#include "base/log.h"

#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>

namespace hvdlite::base {
namespace {

constexpr const char* kNames[] = {"TRACE", "DEBUG", "INFO", "WARN", "ERROR", "OFF"};

std::string timestamp() {
  timeval now;
  gettimeofday(&now, nullptr);
  tm parts;
  localtime_r(&now.tv_sec, &parts);
  char text[48];
  const std::size_t used = strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
  snprintf(text + used, sizeof(text) - used, ".%06ld ", static_cast<long>(now.tv_usec));
  return text;
}

}  // namespace

void Logger::write(LogLevel level, std::string_view subsystem, const std::string& message) const {
  if (!enabled(level) || level >= LogLevel::kOff) return;
  std::string line = timestamps_ ? timestamp() : std::string();
  line += "hvdlite ";
  line += kNames[static_cast<int>(level)];
  line += " [";
  line += subsystem;
  line += " rank " + std::to_string(rank_) + "/" + std::to_string(size_) + "] " + message + "\n";
  // If the write fails, there is no place to which that could be reported.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace hvdlite::base
