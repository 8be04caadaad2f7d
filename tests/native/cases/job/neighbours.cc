// The other processes of this host, as the kernel sees them: real processes, which this one starts and ends.
#include "job/neighbours.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "harness.h"

namespace hvdlite::job::neighbours_test {
namespace {

// A process that waits for its end.
pid_t start() {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  EXPECT(child > 0);
  return child;
}

void reap(pid_t child) { EXPECT(waitpid(child, nullptr, 0) == child); }

TEST(a_process_that_ends_is_seen) {
  const pid_t child = start();
  const auto watched = watch_processes({0, child});
  EXPECT(!watched->has_ended(0) && !watched->has_ended(1));
  watched->kill(1);
  reap(child);
  EXPECT(!watched->has_ended(0) && watched->has_ended(1));
}

// It told its number, ended, and its parent has taken note: then the kernel knows no process of this number.
TEST(a_process_that_ended_before_the_watch_began_is_seen) {
  const pid_t child = start();
  EXPECT(::kill(child, SIGKILL) == 0);
  reap(child);
  const auto watched = watch_processes({child, 0});
  EXPECT(watched->has_ended(0) && !watched->has_ended(1));
  EXPECT(!watched->is_stopped(0));
  watched->kill(0);
}

}  // namespace
}  // namespace hvdlite::job::neighbours_test
