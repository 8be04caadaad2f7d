// The thread of each rank that sends around the ring of ranks and receives from there: small and large, in bursts that fill the rings
// in shared memory, in an order of its own.

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "stress.h"

namespace stress {

namespace {

constexpr int kBursts = 12;
constexpr int kMessages = 40;  // of a burst
constexpr int64_t kCounts[] = {0, 1, 700, 2000, 30'000};

struct Message {
  bool sends = false;
  int tag = 0;
  int64_t count = 0;
  std::vector<float> memory{};
  int64_t work = 0;
};

// Of a message of the rank: the receiver knows it too.
float value_of(int rank, int burst, int tag) {
  return static_cast<float>(10'000 * rank + 100 * burst + tag);
}

void submit_message(const Round& round, int rank, int burst, Message& message) {
  const int size = round.size;
  const int peer = (rank + (message.sends ? 1 : size - 1)) % size;
  message.memory.assign(static_cast<size_t>(message.count),
                        message.sends ? value_of(rank, burst, message.tag) : -1.0F);
  const std::string name =
      (message.sends ? "out." : "in.") + std::to_string(burst) + "." + std::to_string(message.tag);
  hvdlite_request request = request_for(message.sends ? kSend : kRecv, name, 0, message.count,
                                        message.memory.data(), message.memory.data());
  request.root = peer;
  request.tag = message.tag;
  message.work = submit(round.engines[static_cast<size_t>(rank)], request);
  expect(message.work > 0, "a message was refused");
}

}  // namespace

void message_caller(const Round& round, int rank, unsigned seed) {
  std::mt19937 random(seed);
  hvdlite_engine* engine = round.engines[static_cast<size_t>(rank)];
  const int left = (rank + round.size - 1) % round.size;
  for (int burst = 0; burst < kBursts; ++burst) {
    std::vector<Message> all;
    for (int tag = 0; tag < kMessages; ++tag) {
      const int64_t count = kCounts[(burst + tag * tag) % 5];
      all.push_back({true, tag, count});
      all.push_back({false, tag, count});
    }
    std::shuffle(all.begin(), all.end(), random);
    for (Message& message : all) submit_message(round, rank, burst, message);
    for (const Message& message : all) {
      expect(wait(engine, message.work) == HVDLITE_OK, "a message failed");
      expect(hvdlite_release(engine, message.work) == HVDLITE_OK, "release failed");
      const float wanted = value_of(message.sends ? rank : left, burst, message.tag);
      for (const float value : message.memory) expect(value == wanted, "a message is wrong");
    }
  }
}

}  // namespace stress
