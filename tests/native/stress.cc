// Hammers engines of one process from many threads: the program the thread and address sanitizers watch.
//
//   hvdlite_stress [SECONDS] [SEED]
//
// Each round makes 2 to 4 ranks on an in-process fabric, on one host or two. Every rank runs several caller threads that
// submit operations, wait, poll and release in orders of their own; results are checked. One more thread submits a prepared
// group again and again, over memory that the engine recycles, one lets each operation submit the next, and one sends and receives
// (stress_messages.cc). In two rounds of three each rank has a fake GPU as well, and threads whose tensors lie there (stress_gpu.h). A
// round ends with join and shutdown, or with a rank that publishes a failure or leaves while others wait; on GPUs operations go on
// meanwhile. Only the C ABI is used. Between rounds two threads wake each other by bells as fast as they can: a ring that is lost
// shows as a sleep of seconds. Over 400 lines, because its rounds share their ranks and checks.

#include "stress.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "hvdlite/hvdlite.h"
#include "stress_gpu.h"
#include "transport/bell.h"

namespace stress {
namespace {

constexpr int kThreadsPerRank = 3;
constexpr int kOperationsPerThread = 40;
constexpr int kGpuOperationsPerThread = 25;
constexpr int kGroupSize = 5;
constexpr int kGroupSubmissions = 20;
constexpr int kChainLength = 60;

void check_result(const Round& round, const Step& step, hvdlite_engine* engine, int64_t handle,
                  const std::vector<float>& output) {
  const int members = round.members(step);
  const float sum = sum_of(members);
  if (step.kind == kAllreduce) {
    for (const float value : output) expect(value == sum, "wrong allreduce result");
  } else if (step.kind == kBroadcast) {
    for (const float value : output) expect(value == 1.0F, "wrong broadcast result");
  } else if (step.kind == kAllgather) {
    const hvdlite_result result = result_of(engine, handle);
    const auto* data = static_cast<const float*>(result.data);
    for (int member = 0; member < members; ++member) {
      for (int i = 0; i < step.count; ++i) {
        expect(data[member * step.count + i] == static_cast<float>(member + 1),
               "wrong allgather result");
      }
    }
  }
}

// Submits its steps in small batches and waits for each batch in an order of its own.
void caller(const Round& round, int rank, int thread, int pair_set, unsigned seed) {
  std::mt19937 random(seed);
  hvdlite_engine* engine = round.engines[static_cast<size_t>(rank)];
  const std::vector<Step>& steps = round.plan[static_cast<size_t>(thread)];
  for (size_t start = 0; start < steps.size();) {
    const size_t end = std::min(steps.size(), start + 1 + random() % 6);
    std::vector<size_t> batch;
    for (size_t i = start; i < end; ++i) {
      if (!steps[i].in_pair || rank < 2) batch.push_back(i);
    }
    start = end;
    std::vector<std::vector<float>> inputs(batch.size()), outputs(batch.size());
    std::vector<int64_t> handles(batch.size());
    for (size_t b = 0; b < batch.size(); ++b) {
      const Step& step = steps[batch[b]];
      inputs[b].assign(static_cast<size_t>(step.count), static_cast<float>(rank + 1));
      outputs[b].resize(static_cast<size_t>(step.count));
      const bool has_output = step.kind == kAllreduce || step.kind == kBroadcast;
      handles[b] =
          submit(engine, step.kind, "t" + std::to_string(thread) + "." + std::to_string(batch[b]),
                 step.in_pair ? pair_set : 0, step.count, inputs[b].data(),
                 has_output ? outputs[b].data() : nullptr);
      expect(handles[b] > 0, "submit refused");
    }
    for (size_t b = batch.size(); b-- > 0;) {
      int done = 0;
      expect(hvdlite_poll(engine, handles[b], &done) == HVDLITE_OK, "poll failed");
      expect(wait(engine, handles[b]) == HVDLITE_OK, "operation failed");
      check_result(round, steps[batch[b]], engine, handles[b], outputs[b]);
      expect(hvdlite_release(engine, handles[b]) == HVDLITE_OK, "release failed");
    }
  }
}

// Members of changing ranks are absent; every submission has new memory.
void group_caller(const Round& round, int rank) {
  hvdlite_engine* engine = round.engines[static_cast<size_t>(rank)];
  const int64_t count = 300'000;  // more than 1 MiB, so that it is recycled
  std::vector<std::string> names;
  std::vector<hvdlite_request> requests;
  for (int i = 0; i < kGroupSize; ++i) names.push_back("g" + std::to_string(i));
  for (const std::string& name : names) {
    requests.push_back(request_for(kAllreduce, name, 0, count, nullptr, nullptr));
  }
  int64_t group = 0;
  expect(hvdlite_prepare(engine, requests.data(), kGroupSize, &group) == HVDLITE_OK,
         "prepare refused");
  for (int step = 0; step < kGroupSubmissions; ++step) {
    hvdlite_block* blocks[kGroupSize];
    void* data[kGroupSize];
    bool absent[kGroupSize];
    for (int i = 0; i < kGroupSize; ++i) {
      expect(hvdlite_block_create(engine, static_cast<size_t>(count) * sizeof(float), &blocks[i]) ==
                 HVDLITE_OK,
             "no block");
      data[i] = hvdlite_block_data(blocks[i]);
      absent[i] = (step + i) % round.size == rank;
      std::fill_n(static_cast<float*>(data[i]), count, static_cast<float>(rank + 1));
    }
    hvdlite_submission what{};
    what.count = kGroupSize;
    what.group = group;
    what.data = data;
    what.absent = absent;
    what.wake = step % 2;
    const int64_t handle = submit(engine, what);
    expect(handle > 0, "a prepared group was refused");
    expect(wait(engine, handle) == HVDLITE_OK, "prepared group failed");
    hvdlite_result results[kGroupSize];
    size_t size = 0;
    expect(hvdlite_results(engine, handle, results, kGroupSize, &size) == HVDLITE_OK &&
               size == kGroupSize,
           "no results");
    for (int i = 0; i < kGroupSize; ++i) {
      expect(results[i].contributors == round.size - 1, "wrong number of contributors");
      const int absentee = (step + i) % round.size;
      const float sum = sum_of(round.size) - static_cast<float>(absentee + 1);
      expect(static_cast<float*>(data[i])[count - 1] == sum, "wrong result of a prepared group");
      hvdlite_block_free(blocks[i]);
    }
    expect(hvdlite_release(engine, handle) == HVDLITE_OK, "release failed");
  }
  expect(hvdlite_release_prepared(engine, group) == HVDLITE_OK, "release_prepared failed");
}

// Unnamed operations of which each submits the next when it has ended, as the kernels of a framework do.
struct Chain {
  const Round& round;
  hvdlite_engine* engine;
  int rank;
  int step = 0;
  float value = 0;
  int64_t handle = 0;
  std::atomic<bool> over{false};
};

void next_of_chain(void* data) {
  Chain& chain = *static_cast<Chain*>(data);
  if (chain.step > 0) {
    expect(wait(chain.engine, chain.handle) == HVDLITE_OK, "an operation of the chain failed");
    expect(chain.value == sum_of(chain.round.size), "wrong result in the chain");
    expect(hvdlite_release(chain.engine, chain.handle) == HVDLITE_OK, "release failed");
  }
  if (chain.step == kChainLength) {
    chain.over = true;
    chain.over.notify_one();
    return;
  }
  if (chain.step % 4 == 3) {
    const int64_t handle = submit(chain.engine, kBarrier, "chain", 0, 0, nullptr, nullptr);
    expect(wait(chain.engine, handle) == HVDLITE_OK, "a barrier of the chain failed");
    expect(hvdlite_release(chain.engine, handle) == HVDLITE_OK, "release failed");
  }
  ++chain.step;
  chain.value = static_cast<float>(chain.rank + 1);
  const int64_t count = 1;
  hvdlite_request request = request_for(kAllreduce, "", 0, count, &chain.value, &chain.value);
  request.name = nullptr;
  hvdlite_submission what{};
  what.requests = &request;
  what.count = 1;
  what.then = next_of_chain;
  what.then_data = &chain;
  expect(hvdlite_submit(chain.engine, &what, &chain.handle) == HVDLITE_OK,
         "a submission of the chain was refused");
}

void chain_caller(Chain& chain) {
  next_of_chain(&chain);
  chain.over.wait(false);
}

void end_round(const Round& round, int rank) {
  hvdlite_engine* engine = round.engines[static_cast<size_t>(rank)];
  const int last = round.size - 1;
  float value = 0;
  // Operations on GPU memory go on until the engine ends, by whatever comes first.
  std::unique_ptr<LateCaller> late;
  const auto begin_late = [&] {
    if (!round.gpu_plan.empty()) late = std::make_unique<LateCaller>(round, rank);
  };
  if (round.ending == Ending::kJoin) {
    expect(wait(engine, submit(engine, kJoin, "join", 0, 0, nullptr, nullptr)) == HVDLITE_OK,
           "join failed");
    begin_late();
  } else if (wait(engine, submit(engine, kBarrier, "end", 0, 0, nullptr, nullptr)) != HVDLITE_OK) {
    // Nobody may fail while others still have operations of the plan; the last of the barrier itself may see it.
    expect(round.ending == Ending::kFailure && rank != last, "the barrier failed");
  } else if (rank != last) {
    begin_late();
    const int64_t handle = submit(engine, kAllreduce, "never", 0, 1, &value, &value);
    if (handle > 0)
      expect(wait(engine, handle) != HVDLITE_OK, "an operation without a peer succeeded");
  } else if (round.ending == Ending::kLeave) {
    begin_late();
  } else {
    begin_late();
    expect(hvdlite_publish_failure(engine, "raised: stress") == HVDLITE_OK, "publish failed");
  }
  expect(hvdlite_engine_shutdown(engine) == HVDLITE_OK, "shutdown failed");
}

void run_rank(const Round& round, int rank, unsigned seed) {
  hvdlite_engine* engine = round.engines[static_cast<size_t>(rank)];
  const int64_t pair[] = {0, 1};
  const int64_t count = 0;
  hvdlite_request add_pair = request_for(kAddProcessSet, "pair", 0, count, nullptr, nullptr);
  add_pair.num_splits = 2;
  add_pair.splits = pair;
  const int64_t handle = submit(engine, add_pair);
  int pair_set = 0;
  if (round.size > 2) {
    expect(wait(engine, handle) == HVDLITE_OK, "add_process_set failed");
    pair_set = result_of(engine, handle).process_set;
    hvdlite_release(engine, handle);
  }
  // Until the engine has stopped: the last callback may be returning still when its chain is over.
  Chain chain{.round = round, .engine = engine, .rank = rank};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreadsPerRank; ++t) {
    threads.emplace_back(caller, std::cref(round), rank, t, pair_set,
                         seed + static_cast<unsigned>(100 * rank + t));
  }
  threads.emplace_back(group_caller, std::cref(round), rank);
  threads.emplace_back(chain_caller, std::ref(chain));
  threads.emplace_back(message_caller, std::cref(round), rank, seed + static_cast<unsigned>(rank));
  for (size_t t = 0; t < round.gpu_plan.size(); ++t) {
    threads.emplace_back(gpu_caller, std::cref(round), rank, static_cast<int>(t), pair_set,
                         seed + static_cast<unsigned>(100 * rank + 50) + static_cast<unsigned>(t));
  }
  if (!round.gpu_plan.empty()) threads.emplace_back(gpu_group_caller, std::cref(round), rank);
  for (std::thread& thread : threads) thread.join();
  end_round(round, rank);
}

std::vector<Step> random_steps(const Round& round, int number, std::span<const Kind> kinds,
                               std::mt19937& random) {
  constexpr int counts[] = {1, 3, 100, 5000, 40000};
  std::vector<Step> steps;
  for (int i = 0; i < number; ++i) {
    steps.push_back({kinds[random() % kinds.size()], counts[random() % 5],
                     round.size > 2 && random() % 3 == 0});
  }
  return steps;
}

hvdlite_config random_config(const Round& round, std::mt19937& random) {
  hvdlite_config config;
  hvdlite_config_init(&config, sizeof(config));
  config.log_level = 5;
  config.failure_linger = 0.5;
  config.cache_capacity = random() % 2 == 0 ? 16 : 1024;
  config.segment_bytes = 4096;
  constexpr double spins[] = {-1, 0, 20};
  config.spin_us = spins[random() % 3];
  if (!round.gpu_plan.empty()) {
    use_fake_gpus(config);
    config.gpu_route = random() % 2 == 0 ? "nccl" : "staged";
  }
  return config;
}

void run_engines(Round& round, const hvdlite_config& config, unsigned seed, std::mt19937& random) {
  // One host, or two of any sizes.
  std::vector<int32_t> hosts;
  const bool on_two_hosts = random() % 2 == 0;
  for (int rank = 0; rank < round.size; ++rank) {
    hosts.push_back(on_two_hosts ? static_cast<int32_t>(random() % 2) : 0);
  }
  hvdlite_fabric* fabric = nullptr;
  expect(hvdlite_fabric_create(round.size, hosts.data(), &fabric) == HVDLITE_OK, "no fabric");
  round.engines.resize(static_cast<size_t>(round.size));
  for (int rank = 0; rank < round.size; ++rank) {
    expect(hvdlite_engine_create_inproc(fabric, rank, &config,
                                        &round.engines[static_cast<size_t>(rank)]) == HVDLITE_OK,
           "no engine");
  }
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < round.size; ++rank)
    ranks.emplace_back(run_rank, std::cref(round), rank, seed);
  for (std::thread& rank : ranks) rank.join();
  for (hvdlite_engine* engine : round.engines) hvdlite_engine_destroy(engine);
  hvdlite_fabric_destroy(fabric);
}

void run_round(unsigned seed) {
  constexpr Kind kinds[] = {kAllreduce, kAllreduce, kAllreduce, kAllgather, kBroadcast, kBarrier};
  constexpr Kind gpu_kinds[] = {kAllreduce, kAllreduce, kAllgather, kBroadcast};
  std::mt19937 random(seed);
  Round round;
  round.size = 2 + static_cast<int>(random() % 3);
  round.ending = static_cast<Ending>(random() % 3);
  for (int t = 0; t < kThreadsPerRank; ++t) {
    round.plan.push_back(random_steps(round, kOperationsPerThread, kinds, random));
  }
  const bool with_gpus = random() % 3 != 0;
  for (int t = 0; with_gpus && t < kGpuThreadsPerRank; ++t) {
    round.gpu_plan.push_back(random_steps(round, kGpuOperationsPerThread, gpu_kinds, random));
  }
  const hvdlite_config config = random_config(round, random);
  std::optional<GpuRound> gpus;
  if (with_gpus) gpus.emplace(round.size, seed);
  run_engines(round, config, seed, random);
}

// A player of a game of two: waits for the count to be its turn, raises it, rings the other's bell.
struct Game {
  static constexpr int kTurns = 2'000;
  static constexpr std::chrono::seconds kLost{5};
  hvdlite::transport::Bell bells[2] = {};
  alignas(64) std::atomic<int> count{0};

  void play(int player, unsigned seed) {
    std::minstd_rand random(seed);
    for (int turn = player; turn < kTurns; turn += 2) {
      const auto mine = [&] { return count.load(std::memory_order_relaxed) == turn; };
      for (unsigned looks = random() % 64; looks > 0 && !mine(); --looks) {
        hvdlite::base::spin_pause();
      }
      while (!mine()) {
        const auto start = std::chrono::steady_clock::now();
        const std::uint32_t seen = bells[player].listen();
        if (mine()) {
          bells[player].unlisten();
          break;
        }
        bells[player].wait(seen, kLost);
        expect(std::chrono::steady_clock::now() - start < kLost, "a ring of the bell was lost");
      }
      count.store(turn + 1, std::memory_order_relaxed);
      bells[1 - player].ring();
    }
  }
};

void wake_each_other(unsigned seed) {
  Game game;
  std::thread other([&] { game.play(1, seed + 1); });
  game.play(0, seed);
  other.join();
}

// The seed of the round under way, for when the process dies of it or is ended because it hangs.
std::atomic<unsigned> seed_under_way{0};

void name_seed() {
  const unsigned seed = seed_under_way;
  std::fprintf(stderr, "stress: seed %u (again: hvdlite_stress 10 %u)\n", seed, seed);
}

void on_signal(int signal) {
  name_seed();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace
}  // namespace stress

// Of the sanitizers, where one is built in.
extern "C" __attribute__((visibility("default"))) void __sanitizer_set_death_callback(void (*)())
    __attribute__((weak));

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10.0;
  unsigned seed = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1;
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(stress::name_seed);
  }
  for (const int signal : {SIGABRT, SIGTERM}) std::signal(signal, stress::on_signal);
  const auto start = std::chrono::steady_clock::now();
  int rounds = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
         seconds) {
    stress::seed_under_way = seed;
    stress::wake_each_other(seed);
    stress::run_round(seed++);
    ++rounds;
  }
  std::printf("stress: %d rounds in %.0f s, last seed %u, no failure\n", rounds, seconds, seed - 1);
  return 0;
}
