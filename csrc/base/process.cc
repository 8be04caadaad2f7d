#include "base/process.h"

#include <string>
#include <string_view>

#include "base/files.h"

namespace hvdlite::base {

char state_of_process(int pid) {
  constexpr std::string_view kField = "\nState:";
  if (pid <= 0) return '\0';
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
  const std::size_t field = status.find(kField);
  if (field == std::string::npos) return '\0';
  const std::size_t at = status.find_first_not_of(" \t", field + kField.size());
  return at != std::string::npos ? status[at] : '\0';
}

}  // namespace hvdlite::base
