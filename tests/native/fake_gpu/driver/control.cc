#include "control.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>

namespace fake {
namespace {

struct Fault {
  long calls = 0;
  long fail_at = 0;  // 0: never
  int code = 0;
};

struct Control {
  std::mutex mutex;
  Settings settings;
  std::map<std::string, Fault> faults;
  std::mt19937_64 random{1};
};

void set_fault(Control& control, const std::string& function, long nth, int code) {
  Fault& fault = control.faults[function];
  fault.fail_at = nth > 0 ? fault.calls + nth : 0;
  fault.code = code;
}

void set(Control& control, const std::string& name, const std::string& value) {
  Settings& s = control.settings;
  const long number = std::strtol(value.c_str(), nullptr, 10);
  if (name == "seed") {
    s.seed = static_cast<std::uint64_t>(number);
    control.random.seed(s.seed);
  } else if (name == "gpus") {
    s.gpus = static_cast<int>(number);
  } else if (name == "driver") {
    s.driver_version = static_cast<int>(number);
  } else if (name == "nccl") {
    s.nccl_version = static_cast<int>(number);
  } else if (name == "nccl_start_ms") {
    s.nccl_start_ms = static_cast<int>(number);
  } else if (name == "capability") {
    s.compute_capability = static_cast<int>(number);
  } else if (name == "delay") {
    s.delay_us = static_cast<int>(number);
  } else if (name == "delay_percent") {
    s.delay_percent = static_cast<int>(number);
  } else if (name == "memory_mb") {
    s.memory_mb = number;
  } else if (name == "host_memory") {
    s.host_memory = static_cast<int>(number);
  } else if (name == "fat_binaries") {
    s.fat_binaries = number != 0;
  } else if (name == "fail") {  // FUNCTION:NTH:CODE
    const std::size_t first = value.find(':');
    const std::size_t second = value.find(':', first + 1);
    if (first != std::string::npos && second != std::string::npos) {
      set_fault(control, value.substr(0, first),
                std::strtol(value.c_str() + first + 1, nullptr, 10),
                std::atoi(value.c_str() + second + 1));
    }
  } else {
    std::fprintf(stderr, "fake GPU: nobody knows the setting %s\n", name.c_str());
    std::abort();
  }
}

void read_environment(Control& control) {
  const char* text = std::getenv("FAKE_GPU");
  if (text == nullptr) return;
  std::istringstream parts(text);
  std::string part;
  while (std::getline(parts, part, ',')) {
    const std::size_t equals = part.find('=');
    if (equals != std::string::npos) set(control, part.substr(0, equals), part.substr(equals + 1));
  }
}

// Never destroyed: the scheduler's thread may outlive main().
Control& control() {
  static Control& instance = [&]() -> Control& {
    auto* made = new Control;
    read_environment(*made);
    return *made;
  }();
  return instance;
}

}  // namespace

Settings settings() {
  std::lock_guard lock(control().mutex);
  return control().settings;
}

void change(const std::string& name, const std::string& value) {
  std::lock_guard lock(control().mutex);
  set(control(), name, value);
}

int enter(const char* function) {
  std::lock_guard lock(control().mutex);
  Fault& fault = control().faults[function];
  ++fault.calls;
  return fault.calls == fault.fail_at ? fault.code : 0;
}

std::mt19937_64& random_source() { return control().random; }

void reset_control() {
  std::lock_guard lock(control().mutex);
  control().faults.clear();
  control().settings = Settings();
  control().random.seed(control().settings.seed);
  read_environment(control());
}

}  // namespace fake

FAKE_EXPORT void fake_set(const char* name, const char* value) { fake::change(name, value); }

// The nth call from now on (1: the next) returns the code; 0 takes that back.
FAKE_EXPORT void fake_fail(const char* function, long nth, int code) {
  std::lock_guard lock(fake::control().mutex);
  fake::set_fault(fake::control(), function, nth, code);
}

FAKE_EXPORT long fake_calls(const char* function) {
  std::lock_guard lock(fake::control().mutex);
  const auto found = fake::control().faults.find(function);
  return found == fake::control().faults.end() ? 0 : found->second.calls;
}

// "cuMemAlloc=3 cuInit=1 ...": all that was called. Valid until this thread asks again.
FAKE_EXPORT const char* fake_called() {
  thread_local std::string text;
  std::lock_guard lock(fake::control().mutex);
  text.clear();
  for (const auto& [name, fault] : fake::control().faults) {
    if (fault.calls > 0) text += name + "=" + std::to_string(fault.calls) + " ";
  }
  return text.c_str();
}
