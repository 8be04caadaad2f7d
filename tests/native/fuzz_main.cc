// The fuzzer without libFuzzer: cases, a corpus, and inputs drawn from a seed, for so many seconds. fuzz_messages.cc says how it
// is called.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz_messages.h"

namespace {

using Clock = std::chrono::steady_clock;
using Input = std::vector<std::uint8_t>;

constexpr unsigned kMostSeconds = 30;  // for one input: more is a loop without end
constexpr const char* kFailureFile = "fuzz-failure.bin";

// The input under way, for when the process dies of it.
Input current;

void keep_failure() {
  if (current.empty()) return;  // it was one of the cases
  std::FILE* file = std::fopen(kFailureFile, "wb");
  if (file == nullptr) return;
  std::fwrite(current.data(), 1, current.size(), file);
  std::fclose(file);
  std::fprintf(stderr, "fuzz: the input is in %s\n", kFailureFile);
}

void on_signal(int signal) {
  std::fprintf(stderr, "fuzz: signal %d%s\n", signal,
               signal == SIGALRM ? " (a loop without end)" : "");
  keep_failure();
  _exit(1);
}

void run(Input input) {
  current = std::move(input);
  alarm(kMostSeconds);
  hvdlite::fuzz::run_input(current);
  alarm(0);
}

Input draw_input(std::mt19937_64& random) {
  Input input(1 + random() % 400);
  for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(random());
  // Stretches of zeros leave what they concern as it is.
  if (random() % 4 == 0)
    std::fill(input.begin() + static_cast<std::ptrdiff_t>(input.size() / 2), input.end(), 0);
  return input;
}

Input read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int write_corpus(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::mt19937_64 random(1);
  for (int number = 0; number < 64; ++number) {
    Input input = draw_input(random);
    input[0] = static_cast<std::uint8_t>(number);
    std::ofstream file(folder / ("seed-" + std::to_string(number)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(input.data()),
               static_cast<std::streamsize>(input.size()));
  }
  return 0;
}

}  // namespace

// What the sanitizers are told: a forged length must not become an allocation. Called before main.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "detect_leaks=0:max_allocation_size_mb=512:allocator_may_return_null=1:handle_abort=0";
}
extern "C" __attribute__((visibility("default"))) void __sanitizer_set_death_callback(void (*)())
    __attribute__((weak));
extern "C" __attribute__((visibility("default"))) void __asan_set_death_callback(void (*)())
    __attribute__((weak));

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 2 && arguments[0] == "--write-corpus") return write_corpus(arguments[1]);
  const double seconds = arguments.empty() ? 10.0 : std::atof(arguments[0].c_str());
  const auto seed = arguments.size() > 1 ? std::strtoull(arguments[1].c_str(), nullptr, 10)
                                         : std::random_device{}();
  if (__asan_set_death_callback != nullptr) __asan_set_death_callback(keep_failure);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_failure);
  for (const int signal : {SIGABRT, SIGALRM}) std::signal(signal, on_signal);
  if (__asan_set_death_callback == nullptr) std::signal(SIGSEGV, on_signal);

  alarm(kMostSeconds);
  const int cases = hvdlite::fuzz::run_cases();
  alarm(0);
  long long replayed = 0;
  if (arguments.size() > 2) {
    for (const auto& entry : std::filesystem::directory_iterator(arguments[2])) {
      run(read(entry.path()));
      ++replayed;
    }
  }
  std::mt19937_64 random(seed);
  long long inputs = 0;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (; Clock::now() < end; ++inputs) run(draw_input(random));
  std::printf("fuzz: %d cases, %lld inputs of the corpus, %lld inputs of seed %llu: no failure\n",
              cases, replayed, inputs, static_cast<unsigned long long>(seed));
  return 0;
}
