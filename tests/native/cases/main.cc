// native_tests list [PREFIX]: the names of the cases that begin so. native_tests run [PREFIX...]: runs them. Exit status 0: all
// hold; 1: one does not; 2: there is none. One alone runs in this process, as a debugger likes it; of several each has its own.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "harness.h"

namespace native_test {

Cases& cases() {
  static Cases instance;
  return instance;
}

void failed(const char* file, int line, const std::string& what) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

Registration::Registration(const char* file, const std::string& name, std::function<void()> run) {
  const std::filesystem::path path(file);
  const std::string subject =
      path.parent_path().filename().string() + "." + path.stem().string() + ".";
  if (!cases().emplace(subject + name, std::move(run)).second) {
    std::fprintf(stderr, "two cases are called %s%s\n", subject.c_str(), name.c_str());
    std::abort();
  }
}

namespace {

using Case = Cases::value_type;

int run(const Case& one) {
  try {
    one.second();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", one.first.c_str(), error.what());
    return 1;
  }
  return 0;
}

int run_in_a_child(const Case& one) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) std::exit(run(one));
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 1;
  if (WIFSIGNALED(status)) {
    std::fprintf(stderr, "%s: %s\n", one.first.c_str(), strsignal(WTERMSIG(status)));
  }
  const bool holds = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  std::printf("%s %s\n", holds ? "ok    " : "FAILED", one.first.c_str());
  return holds ? 0 : 1;
}

int usage() {
  std::fprintf(stderr, "usage: native_tests list|run [PREFIX...]\n");
  return 2;
}

int act(const std::string& verb, std::vector<std::string> prefixes) {
  if (prefixes.empty()) prefixes.emplace_back();
  std::vector<const Case*> wanted;
  for (const Case& one : cases()) {
    for (const std::string& prefix : prefixes) {
      // The name of one case may be the beginning of another's.
      const bool exact = cases().count(prefix) > 0;
      if (exact ? one.first == prefix : one.first.rfind(prefix, 0) == 0) {
        wanted.push_back(&one);
        break;
      }
    }
  }
  if (verb == "list") {
    for (const Case* one : wanted) std::printf("%s\n", one->first.c_str());
    return 0;
  }
  if (verb != "run") return usage();
  if (wanted.empty()) {
    std::fprintf(stderr, "no case has such a name; see native_tests list\n");
    return 2;
  }
  if (wanted.size() == 1) return run(*wanted.front());
  int status = 0;
  for (const Case* one : wanted) status |= run_in_a_child(*one);
  return status;
}

}  // namespace
}  // namespace native_test

int main(int count, char** arguments) {
  if (count < 2) return native_test::usage();
  return native_test::act(arguments[1], {arguments + 2, arguments + count});
}
