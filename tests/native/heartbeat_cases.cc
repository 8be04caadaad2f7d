// Plays a story to engine::Heartbeat on a clock of its own, for tests/unit/test_heartbeat.py.
//
// Arguments: the timeout in milliseconds, then events in order of time: MS for a look at that time, MS=HOST for something heard,
// MS-HOST for a host that leaves. A look prints a line: the time, to whom a sign of life is due, and who is silent.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "engine/heartbeat.h"

namespace {

using hvdlite::base::Clock;
using hvdlite::base::microseconds;

void print(char mark, const std::vector<int>& hosts) {
  for (const int host : hosts) std::printf(" %c%d", mark, host);
}

}  // namespace

int main(int count, char** arguments) {
  const Clock::time_point start;
  hvdlite::engine::Heartbeat heartbeat({1, 2}, microseconds(std::atol(arguments[1]) * 1000), start);
  for (int i = 2; i < count; ++i) {
    char* rest = nullptr;
    const long milliseconds = std::strtol(arguments[i], &rest, 10);
    const Clock::time_point now = start + microseconds(milliseconds * 1000);
    if (*rest == '=') {
      heartbeat.heard(std::atoi(rest + 1), now);
    } else if (*rest == '-') {
      heartbeat.forget(std::atoi(rest + 1));
    } else {
      const auto actions = heartbeat.tick(now);
      std::printf("%ld:", milliseconds);
      print('>', actions.send);
      print('!', actions.silent);
      std::printf("\n");
    }
  }
}
