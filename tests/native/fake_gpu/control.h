// What tests set and ask: failures of the n-th call, seed, delays, number of GPUs, versions; counts of calls.
// From the environment variable FAKE_GPU ("seed=3,gpus=1,fail=cuMemcpyAsync:5:700,driver=12020,nccl=21805,delay=200") when the
// library is loaded, afterwards by the functions fake_* that tests call through ctypes.
// Thread: any, one lock. Owns: the settings. Blocks: no. Throws: nothing.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

#pragma GCC visibility push(default)  // the other fake libraries call it, too
namespace fake {

struct Settings {
  std::uint64_t seed = 1;
  int gpus = 2;
  int driver_version = 13000;
  int nccl_version = 22703;
  int nccl_start_ms = 0;  // for which a communicator that does not block is not ready
  int compute_capability = 90;
  int delay_us = 200;      // the longest pause before an operation; 0: no pauses
  int delay_percent = 20;  // how many operations are paused before
  long memory_mb = 4096;   // of each GPU
  // Plain memory of the host counts as that of GPU host_memory - 1, too, as on machines where a GPU reads all of it: for tests
  // with tensors of a framework that has no GPU. 0: it does not.
  int host_memory = 0;
  bool fat_binaries = false;  // cuModuleLoadData takes real images, too
};

// A copy, as of now.
Settings settings();
void change(const std::string& name, const std::string& value);

// Counts a call; what is to be returned instead of doing it: 0, or the code that a test has asked for.
int enter(const char* function);

// Random numbers from the seed; only the holder of the world's lock draws.
std::mt19937_64& random_source();
void reset_control();
}  // namespace fake
#pragma GCC visibility pop

// The first line of every function that can be made to fail.
#define FAKE_ENTER(name)                                                         \
  do {                                                                           \
    if (const int injected = ::fake::enter(name)) return ::fake::fail(injected); \
  } while (false)
