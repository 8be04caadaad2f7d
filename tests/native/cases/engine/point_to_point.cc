// What ranks send one another, in every order. Over 400 lines, because the machine, its jobs and its rules belong together.
// Small jobs of the machines alone are stepped in all possible orders of what their ranks ask for, what arrives and how ranks
// end, as long as that leads to states not seen before.
#include "engine/point_to_point/point_to_point.h"

#include <cstring>
#include <deque>
#include <memory>
#include <unordered_set>

#include "harness.h"
#include "no_memory.h"

namespace hvdlite::engine::point_to_point_test {
namespace {

constexpr SetId kWorld = {0, 1};
constexpr std::size_t kWholeElements = 2;

// One step of a rank's program.
struct Step {
  enum Kind : std::uint8_t { kSend, kRecv, kLeave, kFailSends, kMeet };
  Kind kind = kSend;
  int peer = 0;
  int tag = 0;
  std::int64_t elements = 1;
};
Step send(int to, int tag = 0, std::int64_t elements = 1) {
  return {Step::kSend, to, tag, elements};
}
// Too much to travel whole.
Step send_large(int to, int tag = 0) { return send(to, tag, 5); }
Step recv(int from, int tag = 0, std::int64_t elements = 1) {
  return {Step::kRecv, from, tag, elements};
}
Step recv_large(int from, int tag = 0) { return recv(from, tag, 5); }
constexpr Step kLeaves = {Step::kLeave};
// A verdict on all that this rank has sent comes.
constexpr Step kFailsSends = {Step::kFailSends};
// Goes on when all ranks have come to this step. They learn of that by no message.
constexpr Step kMeets = {Step::kMeet};

struct Plan {
  std::vector<std::vector<Step>> programs;
  int dies = -1;  // the rank that may, between its steps
  std::size_t unreceived = 1000;
  std::vector<std::size_t> only_failure{};  // by rank: the one operation that fails
};

class Job;

struct Asked {
  Step step;
  CompletionPtr completion = std::make_shared<Completion>();
  std::vector<float> memory;
};

class Rank final : public PointToPoint::Effects {
 public:
  Rank(Job& job, int number, int ranks, std::size_t unreceived)
      : job_(job),
        number_(number),
        machine_({number, ranks, kWholeElements * sizeof(float), unreceived}, *this) {
    auto members = std::make_shared<std::vector<int>>();
    for (int rank = 0; rank < ranks; ++rank) members->push_back(rank);
    machine_.add_set({kWorld, members, number});
  }

  void ask(const Step& step);
  PointToPoint& machine() { return machine_; }

  std::deque<Asked> asked;
  bool ended = false, left = false;
  bool cannot_send = false;
  std::size_t refused = 0;  // the allocation of the machine's next step that has no memory
  // Does the caller still have the operation that it asked for last?
  bool has_last() const { return last_.request != nullptr; }

  // --- effects ---
  void send(int rank, const Message& message) override;
  void finish(std::span<const Entry> entries, const base::Status& status) override {
    for (const Entry& entry : entries) {
      EXPECT(!entry.completion->is_done());
      if (!status.ok()) entry.completion->failure = std::make_unique<const base::Status>(status);
      entry.completion->done.store(1);
    }
  }
  void start_send(Entry entry, int to) override;
  void start_receive(Entry entry, int from) override;
  void take(Entry receive, const void* payload) override {
    if (receive.request->count > 0) std::memcpy(receive.output, payload, receive.request->bytes());
    finish({&receive, 1}, base::Status{});
  }
  void take_own(Entry receive, Entry send) override {
    take(receive, send.input);
    finish({&send, 1}, base::Status{});
  }
  void posted(const Entry&) override {}
  void reached(std::span<const Entry>, FlightRecorder::Stage) override {}

 private:
  Job& job_;
  int number_;
  PointToPoint machine_;
  Entry last_;
};

// What is between two ranks, in its order.
struct Wire {
  std::deque<std::vector<std::byte>> messages;
  std::deque<std::vector<float>> payloads;
  std::deque<Entry> receives;
};

class Job {
 public:
  explicit Job(const Plan& plan) : plan_(plan), next_(plan.programs.size()) {
    const auto size = static_cast<int>(plan.programs.size());
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(std::make_unique<Rank>(*this, rank, size, plan.unreceived));
    }
  }

  // What may happen next: a rank's next step, a message that arrives, or a death.
  struct Choice {
    int rank = 0;
    int to = -1;  // of a message
    bool dies = false;
  };
  std::vector<Choice> choices() const {
    std::vector<Choice> found;
    for (int rank = 0; rank < size(); ++rank) {
      const auto place = static_cast<std::size_t>(rank);
      const Rank& each = *ranks[place];
      if (!each.ended && next_[place] < plan_.programs[place].size() && !has_to_meet(rank)) {
        found.push_back({rank});
      }
    }
    for (const auto& [ends, wire] : wires) {
      if (!wire.messages.empty()) found.push_back({ends.first, ends.second});
    }
    if (plan_.dies >= 0 && !rank(plan_.dies).ended) found.push_back({plan_.dies, -1, true});
    return found;
  }
  void take(const Choice& choice) {
    if (choice.dies) {
      rank(choice.rank).ended = true;
    } else if (choice.to >= 0) {
      arrive(choice.rank, choice.to);
    } else {
      const auto place = static_cast<std::size_t>(choice.rank);
      rank(choice.rank).ask(plan_.programs[place][next_[place]++]);
    }
  }

  Rank& rank(int number) const { return *ranks[static_cast<std::size_t>(number)]; }
  int size() const { return static_cast<int>(ranks.size()); }
  // Payloads whose memory both ranks have given.
  void move(Wire& wire) {
    while (!wire.payloads.empty() && !wire.receives.empty()) {
      const std::vector<float>& payload = wire.payloads.front();
      const Entry& entry = wire.receives.front();
      EXPECT(payload.size() == static_cast<std::size_t>(entry.request->count));
      std::ranges::copy(payload, static_cast<float*>(entry.output));
      entry.completion->done.store(1);
      wire.payloads.pop_front();
      wire.receives.pop_front();
    }
  }
  std::uint64_t digest() const;
  void check_end() const;

  std::vector<std::unique_ptr<Rank>> ranks;
  std::map<std::pair<int, int>, Wire> wires;

 private:
  void arrive(int from, int to);
  // Does its next step wait for another rank?
  bool has_to_meet(int number) const {
    const auto meets = [](const Step& step) { return step.kind == Step::kMeet; };
    const auto mine = static_cast<std::size_t>(number);
    if (!meets(plan_.programs[mine][next_[mine]])) return false;
    for (std::size_t place = 0; place < next_.size(); ++place) {
      const auto& steps = plan_.programs[place];
      if (next_[place] <
          static_cast<std::size_t>(std::ranges::find_if(steps, meets) - steps.begin())) {
        return true;
      }
    }
    return false;
  }

  const Plan& plan_;
  std::vector<std::size_t> next_;
};

void Rank::ask(const Step& step) {
  if (step.kind == Step::kLeave) {
    machine_.leave({base::ErrorCode::kAborted, "this rank has left"});
    left = true;
    for (int rank = 0; rank < job_.size(); ++rank) {
      if (rank != number_) job_.wires[{number_, rank}].messages.push_back(encode(Goodbye{}));
    }
    return;
  }
  if (step.kind == Step::kMeet) return;
  if (step.kind == Step::kFailSends) {
    Verdict verdict{.set = kWorld, .names = {}, .text = "nobody receives them"};
    for (std::size_t i = 1; i <= asked.size(); ++i) {
      verdict.names.push_back("send." + std::to_string(i));
    }
    machine_.hear(0, verdict);
    return;
  }
  Asked& mine = asked.emplace_back(step);
  const bool sends = step.kind == Step::kSend;
  // Each message of a rank has a value of its own.
  const auto value = static_cast<float>(100 * (number_ + 1) + static_cast<int>(asked.size()));
  mine.memory.assign(static_cast<std::size_t>(step.elements), sends ? value : -1);
  Request request;
  request.set = kWorld;
  request.kind = sends ? base::OpKind::kSend : base::OpKind::kRecv;
  request.root = step.peer;
  request.tag = step.tag;
  request.name = std::string(base::name_of(request.kind)) + "." + std::to_string(asked.size());
  request.shape = {step.elements};
  request.seal();
  last_ = {std::make_shared<const Request>(request),
           mine.memory.data(),
           mine.memory.data(),
           mine.completion,
           nullptr,
           nullptr,
           {}};
  native_test::refuse_allocation(refused);
  machine_.admit(last_);
  native_test::refuse_allocation(0);
}

void Rank::send(int rank, const Message& message) {
  if (cannot_send) throw base::Error(base::ErrorCode::kPeerLost, "no way to the rank");
  job_.wires[{number_, rank}].messages.push_back(encode(message));
}

void Rank::start_send(Entry entry, int to) {
  Wire& wire = job_.wires[{number_, to}];
  const auto* start = static_cast<const float*>(entry.input);
  wire.payloads.emplace_back(start, start + entry.request->count);
  entry.completion->done.store(1);
  job_.move(wire);
}

void Rank::start_receive(Entry entry, int from) {
  Wire& wire = job_.wires[{from, number_}];
  wire.receives.push_back(std::move(entry));
  job_.move(wire);
}

void Job::arrive(int from, int to) {
  Wire& wire = wires[{from, to}];
  const std::vector<std::byte> bytes = std::move(wire.messages.front());
  wire.messages.pop_front();
  Message message = decode(bytes);
  Rank& rank = *ranks[static_cast<std::size_t>(to)];
  if (rank.ended) return;
  std::visit(
      [&](auto& content) {
        using Content = std::decay_t<decltype(content)>;
        if constexpr (std::is_same_v<Content, Goodbye>) {
          rank.machine().left(from, {base::ErrorCode::kAborted, "it has left"});
        } else if constexpr (requires { rank.machine().hear(from, std::move(content)); }) {
          rank.machine().hear(from, std::move(content));
        } else {
          EXPECT(false);
        }
      },
      message);
}

std::uint64_t Job::digest() const {
  base::Hasher hasher;
  for (const auto& rank : ranks) {
    hasher.add(rank->machine().digest());
    hasher.add_pair(rank->ended ? 1 : 0, rank->left ? 1 : 0);
    hasher.add(rank->asked.size());
    for (const Asked& each : rank->asked) {
      hasher.add_pair(each.completion->is_done() ? 1 : 0, each.completion->failure ? 1 : 0);
      for (const float value : each.memory) hasher.add_double(value);
    }
  }
  for (const auto& [ends, wire] : wires) {
    hasher.add_pair(ends.first, ends.second);
    hasher.add_pair(static_cast<std::int32_t>(wire.payloads.size()),
                    static_cast<std::int32_t>(wire.receives.size()));
    for (const auto& bytes : wire.messages) {
      hasher.add_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
  }
  return hasher.value();
}

// Nothing more can happen: nobody waits, but for the dead, and what came from one rank with one tag came in its order.
void Job::check_end() const {
  for (std::size_t number = 0; number < ranks.size(); ++number) {
    const auto& rank = ranks[number];
    std::map<std::pair<int, int>, float> newest;  // by sender and tag
    for (std::size_t place = 0; place < rank->asked.size() && !rank->ended; ++place) {
      const Asked& each = rank->asked[place];
      const bool lost = plan_.dies >= 0;
      EXPECT(each.completion->is_done() || lost);
      if (!plan_.only_failure.empty()) {
        EXPECT((each.completion->failure != nullptr) == (place == plan_.only_failure[number]));
      }
      if (each.step.kind != Step::kRecv || !each.completion->is_done() ||
          each.completion->failure) {
        continue;
      }
      const int source = each.completion->value, tag = each.completion->contributors;
      EXPECT((each.step.peer == kAny || each.step.peer == source) &&
             (each.step.tag == kAny || each.step.tag == tag));
      if (each.memory.empty()) continue;
      for (const float value : each.memory) EXPECT(value == each.memory.front());
      EXPECT(static_cast<int>(each.memory.front()) / 100 == source + 1);
      float& last = newest[{source, tag}];
      EXPECT(last < each.memory.front());
      last = each.memory.front();
    }
  }
}

// Gives how many states there are. A state is come to again from the beginning: nothing is copied.
std::size_t explore(const Plan& plan) {
  std::unordered_set<std::uint64_t> seen;
  std::vector<std::vector<Job::Choice>> open = {{}};
  while (!open.empty()) {
    const std::vector<Job::Choice> path = std::move(open.back());
    open.pop_back();
    const auto come_here = [&] {
      auto job = std::make_unique<Job>(plan);
      for (const Job::Choice& choice : path) job->take(choice);
      return job;
    };
    const auto here = come_here();
    const auto choices = here->choices();
    if (choices.empty()) here->check_end();
    for (const Job::Choice& choice : choices) {
      const auto job = come_here();
      job->take(choice);
      if (!seen.insert(job->digest()).second) continue;
      open.push_back(path);
      open.back().push_back(choice);
    }
  }
  return seen.size();
}

// At least: four fifths of those that there were when this was written.
void expect_states(const Plan& plan, std::size_t least) {
  const std::size_t states = explore(plan);
  EXPECT_OR(states >= least, std::to_string(states));
}

TEST(both_directions_in_any_order) {
  expect_states({{{send(1), recv(1), send_large(1), recv_large(1, 1)},
                  {send_large(0, 1), send(0), recv(0), recv_large(0)}}},
                127);
  expect_states({{{recv_large(1), send_large(1, 2), recv(1, 1), send(1)},
                  {recv(0), recv_large(0, 2), send(0, 1), send_large(0)}}},
                153);
}

TEST(what_has_one_tag_is_not_overtaken) {
  expect_states({{{send(1), send_large(1, 1), send(1), send(1, 1, 5)},
                  {recv_large(0, 1), recv(0), recv_large(0, 1), recv(0)}}},
                115);
}

TEST(from_any_rank_with_any_tag) {
  expect_states({{{recv(kAny), recv_large(kAny, 1), recv(kAny), recv_large(kAny, kAny)},
                  {send(0), send_large(0, 1)},
                  {send_large(0, 1), send(0)}}},
                360);
}

TEST(more_than_may_wait_unreceived_in_any_order) {
  const auto all = [](Step step) { return std::vector<Step>(4, step); };
  for (const std::size_t unreceived : {std::size_t{0}, std::size_t{300}, std::size_t{600}}) {
    const auto empty = send(1, 0, 0);
    expect_states({{all(send(1)), all(recv(0))}, -1, unreceived}, 25);
    expect_states({{{empty, empty, send(1), kLeaves}, {recv(0, 0, 0), recv(0, 0, 0), recv(0)}},
                   -1,
                   unreceived},
                  20);
  }
}

TEST(to_oneself) {
  expect_states({{{send_large(0), recv_large(0), recv(0, 1), send(0, 1), send(1)}, {recv(0)}}}, 10);
}

TEST(who_leaves_leaves_nobody_waiting) {
  expect_states({{{send_large(1), recv(1), kLeaves}, {recv_large(0), send(0), send_large(0, 1)}}},
                164);
  expect_states({{{send(1), kLeaves}, {recv(kAny), recv_large(kAny), send_large(0)}}}, 26);
  expect_states(
      {{{send_large(2), kLeaves}, {recv_large(kAny, 1), kLeaves}, {recv_large(kAny, kAny)}}}, 191);
}

TEST(what_does_not_fit_ends_on_both_sides) {
  expect_states(
      {{{send_large(1, 1), recv(1, 2), send(1)}, {recv(0, 1, 6), send_large(0, 2), recv(0, 0, 2)}}},
      76);
}

// A verdict fails both sends at once. The second send that each rank asks for is always met, whatever the receives have heard
// by then.
TEST(a_send_that_a_verdict_failed_fails_no_later_receive) {
  const Plan plan{{{send_large(1), kFailsSends, kMeets, send(1, 0, 7), recv(1, 0, 7)},
                   {send_large(0), kFailsSends, kMeets, recv(0, 0, 7), send(0, 0, 7)}},
                  -1,
                  1000,
                  {0, 0}};
  expect_states(plan, 28);
}

TEST(a_rank_that_dies_at_any_moment_gives_nobody_half_a_message) {
  expect_states({{{send_large(1), recv(1), send(1)}, {recv_large(0), send(0), recv(0)}}, 0}, 210);
  expect_states({{{recv_large(kAny), recv_large(kAny)}, {send_large(0)}, {send_large(0)}}, 2}, 113);
}

// --- texts ------------------------------------------------------------------------------------------------------------

// All that can happen, in one order.
void run(Job& job) {
  for (auto choices = job.choices(); !choices.empty(); choices = job.choices()) {
    job.take(choices.front());
  }
}

base::Status status_of(const Job& job, int rank, std::size_t place) {
  const Completion& completion = *job.rank(rank).asked[place].completion;
  EXPECT(completion.is_done());
  return completion.failure ? *completion.failure : base::Status{};
}

TEST(states_differ_by_the_tags_of_receives) {
  const Plan plan{{{}, {}}};
  Job one(plan), other(plan);
  one.rank(0).ask(recv(1, /*tag=*/0));
  other.rank(0).ask(recv(1, /*tag=*/1));
  EXPECT(one.digest() != other.digest());
}

TEST(states_differ_by_the_messages_that_were_heard) {
  const Plan plan{{{}, {}}};
  Job one(plan), other(plan);
  const std::vector<std::byte> payload(4);
  std::uint64_t number = 0;
  for (Job* job : {&one, &other}) {
    job->rank(0).ask(recv(1));
    job->rank(0).machine().hear(
        1, Offer{kWorld, ++number, 0, base::DType::kFloat32, 0, 1, "x", true, payload});
  }
  EXPECT(one.digest() != other.digest());
}

TEST(a_mismatch_names_both_tensors_at_both_ends) {
  const Plan plan{{{send_large(1)}, {recv(0, 0, 6)}}};
  Job job(plan);
  run(job);
  for (const int rank : {0, 1}) {
    const base::Status status = status_of(job, rank, 0);
    EXPECT(status.code == base::ErrorCode::kMismatch);
    EXPECT_HAS(status.message, "recv of '1' from rank 0 (tag 0) in process set 0");
    EXPECT_HAS(status.message,
               "rank 0 sent '1', 5 elements of float32, but rank 1 receives 6 elements of float32");
  }
}

// The engine moves elements of a dtype that it does not know under another dtype of that size, which no user has chosen.
TEST(a_mismatch_names_the_dtypes_that_users_have_chosen) {
  constexpr std::int32_t kFloat8E5M2 =
      1484248441;  // elements_of("float8_e5m2", ...) in hvdlite/dtypes.py
  const auto refusal_of = [](base::DType dtype, std::int32_t layout) {
    const Plan plan{{{}, {}}};
    Job job(plan);
    job.rank(0).ask(recv(1));
    const std::vector<std::byte> payload(4);
    job.rank(0).machine().hear(1, Offer{kWorld, 1, 0, dtype, layout, 1, "x", true, payload});
    return status_of(job, 0, 0).message;
  };
  EXPECT_HAS(refusal_of(base::DType::kUInt8, kFloat8E5M2),
             "rank 1 sent 'x', 1 element of float8_e5m2, but rank 0 receives 1 element of float32; "
             "give both tensors one dtype");
  EXPECT_HAS(refusal_of(base::DType::kFloat32, 2),
             "rank 0 receives 1 element of float32, in another memory layout; give");
}

TEST(who_has_sent_what_did_not_fit_is_told_at_its_next_call) {
  const Plan plan{{{send(1)}, {recv(0, 0, 2)}}};
  Job job(plan);
  run(job);
  EXPECT(status_of(job, 0, 0).ok());
  EXPECT(status_of(job, 1, 0).code == base::ErrorCode::kMismatch);
  job.rank(0).ask(send(1));
  EXPECT(status_of(job, 0, 1).code == base::ErrorCode::kMismatch);
  EXPECT_HAS(status_of(job, 0, 1).message, "rank 0 sent '1', 1 element of float32");
  job.rank(0).ask(send(1));
  EXPECT(status_of(job, 0, 2).ok());
}

TEST(each_send_that_was_refused_is_told) {
  const Plan plan{{{send(1), send(1, 1)}, {recv(0, 0, 2), recv(0, 1, 2)}}};
  Job job(plan);
  run(job);
  for (const std::size_t place : {0, 1}) {
    EXPECT(status_of(job, 0, place).ok());
    job.rank(0).ask(send(1, 2));
    EXPECT_HAS(status_of(job, 0, 2 + place).message,
               "rank 0 sent '" + std::to_string(place + 1) + "', 1 element of float32");
  }
  job.rank(0).ask(send(1, 2));
  EXPECT(status_of(job, 0, 4).ok());
}

// Two of them may wait; the word that there is room comes when half of that has been received.
TEST(small_messages_that_nobody_receives_wait_at_their_sender) {
  const Plan plan{{{}, {}}, -1, 2 * PointToPoint::counted_bytes(4)};
  Job job(plan);
  const auto is_sent = [&](std::size_t place) { return status_of(job, 0, place).ok(); };
  for (int i = 0; i < 3; ++i) job.rank(0).ask(send(1));
  run(job);
  EXPECT(is_sent(0) && is_sent(1));
  EXPECT(!job.rank(0).asked[2].completion->is_done() && job.rank(0).machine().waits());
  job.rank(1).ask(recv(0));
  run(job);
  job.rank(0).ask(send(1));
  EXPECT(is_sent(3));
  EXPECT(!job.rank(0).asked[2].completion->is_done());
  for (int i = 0; i < 3; ++i) job.rank(1).ask(recv(0));
  run(job);
  EXPECT(is_sent(2) && status_of(job, 1, 3).ok());
}

TEST(no_entry_is_lost_when_a_message_cannot_be_sent) {
  const Plan plan{{{}, {}}, -1, PointToPoint::counted_bytes(4)};
  const auto fails = [](const auto& step) {
    try {
      step();
    } catch (const base::Error& error) {
      return error.code() == base::ErrorCode::kPeerLost;
    }
    return false;
  };
  for (const Step& step : {send(1), send_large(1)}) {
    Job job(plan);
    job.rank(0).cannot_send = true;
    EXPECT(fails([&] { job.rank(0).ask(step); }));
    EXPECT(job.rank(0).has_last() != job.rank(0).machine().waits());
  }
  // The message of rank 0 has arrived, and its receive sends a Receipt.
  Job arrived(plan);
  arrived.rank(0).ask(send(1));
  run(arrived);
  arrived.rank(1).cannot_send = true;
  EXPECT(fails([&] { arrived.rank(1).ask(recv(0)); }));
  EXPECT(arrived.rank(1).has_last());
  // The message arrives at a receive that waits.
  Job waiting(plan);
  waiting.rank(1).ask(recv(0));
  waiting.rank(1).cannot_send = true;
  waiting.rank(0).ask(send(1));
  EXPECT(fails([&] { run(waiting); }));
  EXPECT(!waiting.rank(1).asked[0].completion->is_done());
  waiting.rank(1).machine().end_all({base::ErrorCode::kPeerLost, "it failed"});
  EXPECT(status_of(waiting, 1, 0).code == base::ErrorCode::kPeerLost);
}

TEST(no_entry_is_lost_when_memory_is_short) {
  const Plan plan{{{}, {}}, -1, PointToPoint::counted_bytes(4)};
  for (const Step& step : {send_large(1), recv(1), recv_large(1)}) {
    native_test::refuse_each_allocation([&](std::size_t number) {
      native_test::refuse_allocation(0);
      Job job(plan);
      job.rank(1).ask(send_large(0));
      run(job);
      job.rank(0).refused = number + 1;
      try {
        job.rank(0).ask(step);
      } catch (const std::bad_alloc&) {
        EXPECT(job.rank(0).has_last() != job.rank(0).machine().waits());
        throw;
      }
    });
  }
}

// Each step of a refusal, and then of an ending, once lacks memory. The next ending ends all that has not ended.
TEST(every_operation_ends_when_memory_is_short) {
  const Plan plan{{{}, {}}};
  const base::Status lost{base::ErrorCode::kPeerLost, "a text that needs memory of its own"};
  const auto end = [&](Job& job) {
    for (const int rank : {0, 1}) job.rank(rank).machine().end_all(lost);
  };
  native_test::refuse_each_allocation([&](std::size_t number) {
    native_test::refuse_allocation(0);
    Job job(plan);
    job.rank(0).ask(send(1, 0, 6));
    job.rank(0).ask(send_large(1, 1));
    job.rank(0).ask(recv(1));
    job.rank(1).ask(recv_large(0));
    job.rank(1).ask(recv(0, 2));
    const auto check = [&] {
      native_test::refuse_allocation(0);
      end(job);
      for (const int rank : {0, 1}) {
        for (const Asked& each : job.rank(rank).asked) EXPECT(each.completion->is_done());
      }
    };
    native_test::refuse_allocation(number + 1);
    try {
      run(job);
      end(job);
    } catch (const std::bad_alloc&) {
      check();
      throw;
    }
    check();
  });
}

TEST(what_was_sent_to_a_set_that_is_gone_counts_as_received) {
  const Plan plan{{{}, {}}, -1, PointToPoint::counted_bytes(4)};
  Job job(plan);
  job.rank(0).ask(send(1));
  run(job);
  job.rank(1).machine().remove_set(kWorld);
  run(job);
  job.rank(0).ask(send(1));
  EXPECT(status_of(job, 0, 1).ok());
  run(job);
  job.rank(0).ask(send(1));
  EXPECT(status_of(job, 0, 2).ok());
}

TEST(a_receive_whose_message_was_withdrawn_is_the_first_again) {
  const Plan plan{
      {{send_large(2), kLeaves}, {send_large(2)}, {recv_large(kAny), recv_large(kAny)}}};
  Job job(plan);
  for (const Job::Choice& choice : {Job::Choice{2}, {2}, {0}, {0, 2}, {0}, {0, 2}}) {
    job.take(choice);  // rank 0 leaves before it knows that rank 2 is ready
  }
  job.take({1});
  run(job);
  EXPECT(status_of(job, 2, 0).ok());
  EXPECT(job.rank(2).asked[0].completion->value == 1);
  EXPECT(!job.rank(2).asked[1].completion->is_done());
}

// Rank 0 withdraws its message before it knows that rank 2 is ready, and rank 2 has left by then.
TEST(a_receive_of_a_rank_that_has_left_takes_no_other_message_after_a_withdrawal) {
  const Plan plan{{{send_large(2), kLeaves}, {send_large(2)}, {recv_large(kAny), kLeaves}}};
  Job job(plan);
  for (const Job::Choice& choice : {Job::Choice{2}, {0}, {1}, {0, 2}, {1, 2}, {2}, {0}, {0, 2}}) {
    job.take(choice);
  }
  EXPECT(status_of(job, 2, 0).code == base::ErrorCode::kAborted);
}

TEST(a_receive_whose_message_was_withdrawn_does_not_pass_earlier_ones) {
  const Plan plan{{{send_large(2, 1), kLeaves},
                   {send_large(2, 2), send_large(2, 1)},
                   {recv_large(kAny, 2), recv_large(kAny, kAny)}}};
  Job job(plan);
  for (const Job::Choice& choice : {Job::Choice{2}, {2}, {0}, {0, 2}, {0}, {0, 2}}) {
    job.take(choice);  // rank 0 leaves before it knows that rank 2 is ready
  }
  run(job);
  for (const std::size_t place : {0, 1}) {
    EXPECT(status_of(job, 2, place).ok());
    EXPECT(job.rank(2).asked[place].completion->contributors == (place == 0 ? 2 : 1));
  }
}

TEST(who_left_is_named_to_those_who_need_it) {
  const Plan plan{{{send_large(1), recv(1)}, {kLeaves}}};
  Job job(plan);
  run(job);
  EXPECT(status_of(job, 0, 0).code == base::ErrorCode::kAborted);
  EXPECT_HAS(status_of(job, 0, 0).message, "send of '1' to rank 1 (tag 0) in process set 0: ");
  job.rank(0).ask(recv(1));
  EXPECT_HAS(status_of(job, 0, 2).message, "recv of '3' from rank 1 (tag 0)");
}

TEST(what_comes_for_a_set_that_is_still_to_be_made_waits_for_it) {
  const Plan plan{{{}, {}}};
  Job job(plan);
  PointToPoint& machine = job.rank(0).machine();
  const SetId set = {1, 2};
  const std::vector<std::byte> payload(4);
  Offer offer{set, 1, 0, base::DType::kFloat32, 0, 1, "early", true, payload};
  machine.hear(1, offer);
  machine.add_set({set, std::make_shared<std::vector<int>>(std::vector{0, 1}), 0});
  machine.remove_set(set);
  machine.hear(1, offer);  // it is gone: dropped, and so it does not matter that it comes twice
}

}  // namespace
}  // namespace hvdlite::engine::point_to_point_test
